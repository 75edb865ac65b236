package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// CheckTUN finds out whether this process may create a TUN interface, by
// creating one and letting it go: capabilities, namespaces and the policy of a
// container have a say in it, and only the kernel knows them all. The error is
// one sentence that says what to do.
func CheckTUN() error { return checkTUN(tunDevice) }

func checkTUN(device string) error {
	f, err := openTUN(device, "weftprobe%d")
	if err == nil {
		return f.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("this system offers no %s (%w): load the tun module (modprobe tun), "+
			"give the container that device, or use --userspace", device, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission to create a network interface (%w): "+
			"run as root or with CAP_NET_ADMIN, or use --userspace", err)
	}
	return fmt.Errorf("cannot create a network interface: %w: use --userspace to do without", err)
}

// openTUN creates a TUN interface that lives as long as the file; a %d in the name
// is filled in by the kernel.
func openTUN(device, name string) (*os.File, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: device, Err: err}
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "TUNSETIFF", Path: device, Err: err}
	}
	return os.NewFile(uintptr(fd), device), nil
}
