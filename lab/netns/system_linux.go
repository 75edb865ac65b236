package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// enter runs f on this goroutine with its thread inside the named namespace. Threads and child
// processes started meanwhile by this goroutine are inside too; other goroutines are not.
func enter(namespace string, f func() error) (err error) {
	target, err := os.Open(filepath.Join(runDir, namespace))
	if err != nil {
		return fmt.Errorf("entering the namespace %s: %w", namespace, err)
	}
	defer target.Close()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering the namespace %s: %w", namespace, err)
	}
	defer home.Close()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering the namespace %s: %w", namespace, err)
	}
	defer func() {
		// A thread that cannot be brought home stays locked to this goroutine and dies with it:
		// no other goroutine may ever run on it.
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("leaving the namespace %s: %w", namespace, back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// detach gives a child a process group of its own, so that Ctrl-C in a terminal reaches this
// process alone, which then ends its children in order.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// mayMakeNamespaces tries what ip(8) will do, and keeps nothing of it: the thread ends with the
// goroutine, and the namespace with the thread.
func mayMakeNamespaces() error {
	errs := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			defer home.Close()
			if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
				// The first thread of a process outlives its goroutine; bring it home as well.
				err = unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
			}
		}
		errs <- err
	}()
	return <-errs
}

// fileID tells files apart; two names of one namespace have the same.
type fileID struct{ dev, ino uint64 }

// identify is false for what cannot be looked at, such as the namespace of a process that is gone
// or already a zombie.
func identify(path string) (fileID, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), st.Ino}, true
}

// flushConntrack empties the connection table of the namespace that the calling thread is in.
func flushConntrack() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }

// unmount takes a file system out of sight at once; it ends when nobody uses it any more.
func unmount(path string) error { return unix.Unmount(path, unix.MNT_DETACH) }
