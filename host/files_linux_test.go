package host

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestALowLimitOfFilesIsRaisedWhereThatIsAllowed runs this test binary anew below a low limit: it is the process's.
func TestALowLimitOfFilesIsRaisedWhereThatIsAllowed(t *testing.T) {
	const inside = "WEFT_HOST_TEST_FILES"
	if os.Getenv(inside) != "" {
		n, err := AllowFiles(2000)
		if (n == 2000) != (err == nil) || n != 2000 && n != 300 {
			t.Fatalf("%d files, %v", n, err)
		}
		var open []*os.File
		defer func() {
			for _, f := range open {
				f.Close()
			}
		}()
		for range 1000 {
			f, fail := os.Open(os.DevNull)
			if fail != nil {
				break
			}
			open = append(open, f)
		}
		if (len(open) == 1000) != (err == nil) {
			t.Errorf("%d could be opened, after %v", len(open), err)
		}
		if err != nil && !strings.Contains(err.Error(), "ulimit -n") {
			t.Errorf("%q does not say what to do", err)
		}
		if n2, err := AllowFiles(100); err != nil || n2 != n {
			t.Errorf("what there is room for already: %d, %v", n2, err)
		}
		return
	}
	cmd := exec.Command("sh", "-c", `ulimit -n 300 && exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
