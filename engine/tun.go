package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.zx2c4.com/wireguard/tun"
)

// maxInterfaceName is the longest name of an interface in Linux: IFNAMSIZ less the final zero.
const maxInterfaceName = 15

// OpenTUN makes a TUN interface with segmentation offload, down and without addresses, and returns it with
// the name that it has.
func OpenTUN(name string, mtu int) (tun.Device, string, error) {
	if name == "" || len(name) > maxInterfaceName {
		return nil, "", fmt.Errorf("%q is not a name for an interface: it has 1 to %d characters", name, maxInterfaceName)
	}
	dev, err := tun.CreateTUN(name, mtu)
	if err != nil {
		return nil, "", tunError(name, err)
	}
	realName, err := dev.Name()
	if err != nil {
		dev.Close()
		return nil, "", fmt.Errorf("interface %s: %w", name, err)
	}
	return dev, realName, nil
}

func tunError(name string, err error) error {
	_, missing := net.InterfaceByName(name)
	switch {
	case errors.Is(err, fs.ErrPermission): // EACCES and EPERM
		return fmt.Errorf("no permission to make interface %s: run as root or with CAP_NET_ADMIN, "+
			"or without an interface (--userspace): %w", name, err)
	case errors.Is(err, syscall.EBUSY), missing == nil:
		return fmt.Errorf("interface %s is in use: stop the program that has it, or choose another name (--tun): %w", name, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO), noCloneDevice():
		return fmt.Errorf("this system has no /dev/net/tun: load the kernel's module (modprobe tun), "+
			"or run without an interface (--userspace): %w", err)
	}
	return fmt.Errorf("making interface %s: %w", name, err)
}

// shim stands between the device and wireguard-go, which brings itself up and down with the interface: the
// sockets are needed while the interface is down, for finding paths, so Up and Close decide alone.
type shim struct {
	tun.Device
	events chan tun.Event
}

func newShim(dev tun.Device) *shim {
	s := &shim{Device: dev, events: make(chan tun.Event)}
	go func() {
		defer close(s.events)
		for ev := range dev.Events() {
			if ev &= tun.EventMTUUpdate; ev != 0 {
				s.events <- ev
			}
		}
	}()
	return s
}

// Events are the device's, without up and down.
func (s *shim) Events() <-chan tun.Event { return s.events }

// noCloneDevice reports that the kernel offers no TUN devices; not every error of opening one says so.
func noCloneDevice() bool {
	_, err := os.Stat("/dev/net/tun")
	return errors.Is(err, fs.ErrNotExist)
}
