//go:build linux

package host

import (
	"errors"
	"fmt"
	"github.com/vishvananda/netlink/nl"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
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

// subscribe returns a function that waits for the kernel's next notice and names
// whom it is about: an interface, with "by itself" for what the kernel does to an
// interface unasked, such as a link-local address.
func subscribe(t *testing.T) func() string {
	t.Helper()
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 5}); err != nil {
		t.Fatal(err)
	}
	var queue []string
	return func() string {
		for len(queue) == 0 {
			msgs, _, err := s.Receive()
			if err != nil {
				t.Fatalf("wait for a notice of the kernel: %v", err)
			}
			for _, m := range msgs {
				queue = append(queue, describe(t, m))
			}
		}
		next := queue[0]
		queue = queue[1:]
		return next
	}
}

func describe(t *testing.T, m syscall.NetlinkMessage) string {
	t.Helper()
	attrs, err := syscall.ParseNetlinkRouteAttr(&m)
	if err != nil {
		t.Fatal(err)
	}
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_IFNAME {
				return strings.TrimRight(string(a.Value), "\x00")
			}
		}
	default:
		for _, a := range attrs {
			// IFA_ADDRESS and RTA_DST have the same number.
			if ip := net.IP(a.Value); a.Attr.Type == unix.RTA_DST && (ip.IsLinkLocalUnicast() || ip.IsMulticast()) {
				return "weft0 by itself"
			}
		}
	}
	return fmt.Sprintf("message of type %d", m.Header.Type)
}
