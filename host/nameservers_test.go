//go:build linux

package host

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestTheNameServersAreThoseOfTheFileOrBehindTheStub(t *testing.T) {
	for _, c := range []struct{ what, file, uplinks, want string }{
		{"no file", "", "", "[]"},
		{"a file", "search a\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n", "", "[192.0.2.53:53 [2001:db8::53]:53]"},
		{"the stub", "nameserver 127.0.0.53\n", "nameserver 192.0.2.54\n", "[192.0.2.54:53]"},
		{"the stub, and nobody behind it", "nameserver 127.0.0.53\n", "", "[127.0.0.53:53]"},
		{"the stub, and another", "nameserver 127.0.0.53\nnameserver 192.0.2.53\n", "nameserver 192.0.2.54\n", "[127.0.0.53:53 192.0.2.53:53]"},
	} {
		root := t.TempDir()
		for path, text := range map[string]string{resolvConfPath: c.file, resolvedUplinks: c.uplinks} {
			if text == "" {
				continue
			}
			if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root+path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint((&resolverEnv{root: root}).nameServers()); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}
