package interop

import (
	"fmt"
	"os"
	"testing"

	"weft/lab/guest"
)

// This binary is started again as other programs, which its first argument names.
var roles = map[string]func() error{
	"interop-agent":   guest.Serve,
	"interop-engine":  serveEngine,
	"interop-library": serveLibrary,
	"interop-echo":    serveEcho,
	"interop-talk":    serveTalk,
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
