package real

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weft/lab/netns"
	"weft/lab/scenario"
)

var weftBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WEFT_BINARY"); path != "" {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	dir, err := os.MkdirTemp("", "weft-binary-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "weft")
	_, err = exec.Command("go", "build", "-o", path, "weft/cmd/weft").CombinedOutput()
	return path, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := weftBinary(); err == nil && path != os.Getenv("WEFT_BINARY") {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func parse(t *testing.T, text string) scenario.Scenario {
	t.Helper()
	s, err := scenario.Parse(t.Name(), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a scenario, which must be possible.
func run(t *testing.T, text string, o scenario.Options) scenario.Result {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	var err error
	if o.Binary, err = weftBinary(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	r, err := Backend{}.Run(ctx, parse(t, text), o)
	t.Logf("took %v: %+v %+v", time.Since(began).Round(time.Millisecond), r.Pairs, r.Outcomes)
	if err != nil || t.Failed() || !r.OK {
		for name, log := range r.Logs {
			t.Logf("--- %s\n%s", name, log[max(0, len(log)-4000):])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const twoHomes = `
router home-a on=internet nat=EIM-APDF ports=preserving delay=20ms jitter=1ms
router home-b on=internet nat=EIM-ADF ports=random delay=20ms jitter=1ms
server hub on=internet
host ann on=home-a
host bob on=home-b
expect ann bob direct within 10s for 2s
`

func TestTwoHomesMeetWithTheRealProgram(t *testing.T) {
	t.Parallel()
	r := run(t, twoHomes, scenario.Options{KeepTrace: true})
	if !r.OK || r.Pairs[0].Path != "direct" || r.Pairs[0].DirectAfter <= 0 || r.Pairs[0].Way != "plain" || r.Pairs[0].Packets == 0 {
		t.Errorf("the pair is %+v, and %+v", r.Pairs, r.Outcomes)
	}
	if len(r.Trace) == 0 {
		t.Error("the trace is empty")
	}
}
