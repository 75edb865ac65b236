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

type patchbay struct{}

func newPatchbay() (*patchbay, error)       { return nil, errNotLinux }
func (*patchbay) do(func()) error           { return errNotLinux }
func (*patchbay) add(station, [2]int) error { return errNotLinux }
func (*patchbay) remove(station) error      { return errNotLinux }
func (*patchbay) close()                    {}

func openTAP(string) (int, error) { return -1, errNotLinux }

func closeTAP(int) {}

func carrierTAP(int, bool) error { return errNotLinux }

func writeTAP(int, []byte) {}

func unmount(string) error { return errNotLinux }
