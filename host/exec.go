package host

import (
	"fmt"
	"os"
	"syscall"
)

// Restart replaces this process by a new one of the same program with other arguments (without the program's
// name) and more environment. It returns only when that fails. Nothing is run through a shell.
func Restart(args, env []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding weft's own binary: %w", err)
	}
	if err := syscall.Exec(self, append([]string{os.Args[0]}, args...), append(os.Environ(), env...)); err != nil {
		return fmt.Errorf("starting %s again: %w", self, err)
	}
	return nil
}
