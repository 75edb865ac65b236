package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"weft/lab/netns"
)

// derperVersion is of tailscale.com: one that Go 1.26 builds, as from v1.104 on it does not.
const derperVersion = "v1.100.0"

// buildDerper builds derper from the module proxy, in a module of its own, and returns its path. One that was
// built into the directory before is taken as it is.
func buildDerper(ctx context.Context, dir string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dir, "derper-"+derperVersion))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return "", fmt.Errorf("derper is built with go, which is not found: install Go, or name a derper with --derper: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("building derper: %w", err)
	}
	module, err := os.MkdirTemp("", "weft-derper-")
	if err != nil {
		return "", fmt.Errorf("building derper: %w", err)
	}
	defer os.RemoveAll(module)
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte("module derper\n\ngo 1.26\n"), 0o600); err != nil {
		return "", fmt.Errorf("building derper: %w", err)
	}
	for _, args := range [][]string{
		{"get", "tailscale.com/cmd/derper@" + derperVersion},
		{"build", "-trimpath", "-o", path, "tailscale.com/cmd/derper"},
	} {
		cmd := netns.Command(ctx, "go", args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building derper: go %s: %w: %s", args[0], err, bytes.TrimSpace(out))
		}
	}
	return path, nil
}
