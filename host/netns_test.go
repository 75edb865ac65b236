//go:build linux

package host

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNetworkNamespace gives the test a network of its own, with nothing in it but
// a loopback interface that is down. The namespace is that of one thread, which is
// locked to the test and ends with it: no subtests.
func inNetworkNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	skipUnlessPermitted(t, "create a network namespace", unix.Unshare(unix.CLONE_NEWNET))
}

// inMountNamespace gives the test a mount table of its own, likewise.
func inMountNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	skipUnlessPermitted(t, "create a mount namespace", unix.Unshare(unix.CLONE_NEWNS))
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatalf("keep mounts to ourselves: %v", err)
	}
}

func skipUnlessPermitted(t *testing.T, what string, err error) {
	t.Helper()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skipf("needs root to %s: %v", what, err)
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// newTUN creates a TUN interface that is gone with the test.
func newTUN(t *testing.T, name string) netlink.Link {
	t.Helper()
	f, err := openTUN(tunDevice, name)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("needs TUN: %v", err)
	}
	skipUnlessPermitted(t, "create a TUN interface", err)
	t.Cleanup(func() { f.Close() })
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// smallDisk mounts a file system of one megabyte in a mount namespace.
func smallDisk(t *testing.T) string {
	t.Helper()
	inMountNamespace(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill leaves no room on the disk that dir is on.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			block = block[:len(block)/2]
		}
	}
}

// within waits for a notice, and reports false when none came in the time.
func within(d time.Duration, c <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}
