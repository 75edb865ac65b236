package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
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
	fd, _, err := attachTUN(device, name, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), device), nil
}

// attachTUN opens a queue of the TUN interface of this name, which is made where there is none.
func attachTUN(device, name string, flags uint16) (fd int, realName string, err error) {
	fd, err = unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, "", &fs.PathError{Op: "open", Path: device, Err: err}
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return 0, "", &fs.PathError{Op: "TUNSETIFF", Path: device, Err: err}
	}
	return fd, req.Name(), nil
}

// A TUN is an interface whose packets come to this process. It is gone when it is closed.
type TUN struct {
	name     string
	queues   []*TUNQueue
	offloads TUNOffloads
}

// OpenTUN makes a TUN interface, down and without addresses, with as many queues, or fewer where the kernel gives no
// more. A %d in the name is filled in by the kernel. The error is one sentence that says what to do.
func OpenTUN(name string, queues int) (*TUN, error) {
	return openTUNQueues(tunDevice, name, queues, tunFeatures)
}

// features is what to ask TUNSETOFFLOAD for.
type features struct {
	bits int
	is   TUNOffloads
}

// tunFeatures are asked for in this order, until the kernel has what is asked for.
var tunFeatures = []features{
	{unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_USO4 | unix.TUN_F_USO6, TUNOffloads{TCP: true, UDP: true}},
	{unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6, TUNOffloads{TCP: true}},
	{0, TUNOffloads{}},
}

func openTUNQueues(device, name string, queues int, try []features) (*TUN, error) {
	if name == "" || len(name) > maxInterfaceName {
		return nil, fmt.Errorf("%q is not a name for an interface: it has 1 to %d characters", name, maxInterfaceName)
	}
	t := &TUN{name: name}
	flags := uint16(unix.IFF_VNET_HDR)
	fail := func(err error) (*TUN, error) {
		_ = t.Close()
		return nil, tunError(device, name, err)
	}
	if queues > 1 {
		// An interface with several queues that somebody has would take ours beside theirs.
		err := t.attach(device, name, flags|unix.IFF_MULTI_QUEUE|unix.IFF_TUN_EXCL, try)
		switch {
		case err == nil:
			for len(t.queues) < queues && t.attach(device, t.name, flags|unix.IFF_MULTI_QUEUE, try) == nil {
			}
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBUSY):
			return fail(err)
		}
	}
	if len(t.queues) == 0 { // one that was made to last, by "ip tuntap add", is taken
		if err := t.attach(device, name, flags, try); err != nil {
			return fail(err)
		}
	}
	return t, nil
}

// attach opens one queue more.
func (t *TUN) attach(device, name string, flags uint16, try []features) error {
	fd, realName, err := attachTUN(device, name, flags)
	if err != nil {
		return err
	}
	err = os.NewSyscallError("TUNSETVNETHDRSZ", unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, tunHeader))
	for i := 0; err == nil; i++ {
		if err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, try[i].bits); err == nil {
			t.offloads = try[i].is
			break
		}
		if errors.Is(err, unix.EINVAL) && i+1 < len(try) { // it has not heard of one of them
			err = nil
		}
	}
	var q *TUNQueue
	if err == nil {
		q, err = newTUNQueue(realName, fd)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	t.name = realName
	t.queues = append(t.queues, q)
	return nil
}

// tunHeader is the length in bytes of the header in front of each packet: virtio's, without what
// VIRTIO_NET_F_MRG_RXBUF adds.
const tunHeader = 10

func tunError(device, name string, err error) error {
	exists, _ := LinkExists(name)
	_, missing := os.Stat(device)
	switch {
	case errors.Is(err, fs.ErrPermission): // EACCES and EPERM
		return fmt.Errorf("no permission to make interface %s: run as root or with CAP_NET_ADMIN, "+
			"or without an interface (--userspace): %w", name, err)
	case errors.Is(err, unix.EBUSY), exists:
		return fmt.Errorf("interface %s is in use: stop the program that has it, or choose another name (--tun): %w", name, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(missing, fs.ErrNotExist):
		return fmt.Errorf("this system has no %s: load the kernel's module (modprobe tun), "+
			"or run without an interface (--userspace): %w", device, err)
	}
	return fmt.Errorf("making interface %s: %w", name, err)
}

// Name is the interface's.
func (t *TUN) Name() string { return t.name }

// Queues are the interface's, at least one. The kernel puts a flow's packets into the queue by which packets of that
// flow were written last.
func (t *TUN) Queues() []*TUNQueue { return t.queues }

// Offloads tells what the kernel gives and takes in super-packets.
func (t *TUN) Offloads() TUNOffloads { return t.offloads }

// Close ends all reads with os.ErrClosed. When it returns, the interface is gone.
func (t *TUN) Close() error {
	var errs []error
	for _, q := range t.queues {
		errs = append(errs, q.close())
	}
	return errors.Join(errs...)
}

// SetLinkMTU gives an interface this MTU, in bytes.
func SetLinkMTU(name string, mtu int) error {
	link, err := netlink.LinkByName(name)
	if err == nil && link.Attrs().MTU != mtu {
		err = netlink.LinkSetMTU(link, mtu)
	}
	if err != nil {
		return fmt.Errorf("set the MTU of %s to %d bytes: %w", name, mtu, advice(err))
	}
	return nil
}

// SetLinkSegments bounds what the kernel gives an interface at once (gso_max_segs): super-packets of so many
// segments.
func SetLinkSegments(name string, most int) error {
	link, err := netlink.LinkByName(name)
	if err == nil && link.Attrs().GSOMaxSegs != uint32(most) {
		err = netlink.LinkSetGSOMaxSegs(link, most)
	}
	if err != nil {
		return fmt.Errorf("bound the super-packets of %s to %d segments: %w", name, most, advice(err))
	}
	return nil
}
