package host

import (
	"fmt"
	"os"
	"os/exec"
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

// Foreground runs a program with this process's terminal until it ends. Nothing is run through a shell.
func Foreground(words ...string) error {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", words[0], err)
	}
	return nil
}
