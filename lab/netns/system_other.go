//go:build !linux

package netns

import (
	"errors"
	"os/exec"
)

var errNotLinux = errors.New("network namespaces exist on Linux only")

func enter(string, func() error) error { return errNotLinux }

func detach(*exec.Cmd) {}

func mayMakeNamespaces() error { return errNotLinux }

type fileID struct{}

func identify(string) (fileID, bool) { return fileID{}, false }

func flushConntrack() error { return errNotLinux }
