package engine

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestATUNThatCannotBeMadeSaysWhatToDo(t *testing.T) {
	for _, name := range []string{"", "sixteenlettersss"} {
		if _, _, err := OpenTUN(name, MTU); err == nil || !strings.Contains(err.Error(), "is not a name for an interface") {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{os.NewSyscallError("ioctl", syscall.EPERM), "run as root or with CAP_NET_ADMIN"},
		{&fs.PathError{Op: "open", Path: "/dev/net/tun", Err: syscall.EACCES}, "(--userspace)"},
		{syscall.EBUSY, "interface weft9 is in use"},
		{syscall.ENODEV, "modprobe tun"},
		{fmt.Errorf("open: %w", fs.ErrNotExist), "modprobe tun"},
	} {
		if err := tunError("weft9", c.err); !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v becomes %q, without %q", c.err, err, c.want)
		}
	}
	if err := tunError("lo", syscall.EINVAL); !strings.Contains(err.Error(), "interface lo is in use") {
		t.Errorf("a name that another kind of interface has: %v", err)
	}
}

func TestATUNHasItsNameAndMTUAndIsNotGivenTwice(t *testing.T) {
	name := fmt.Sprintf("weftt%d", os.Getpid()%100000)
	dev, realName, err := OpenTUN(name, MTU)
	if err != nil {
		t.Skipf("needs root and /dev/net/tun: %v", err)
	}
	defer dev.Close()
	if mtu, err := dev.MTU(); realName != name || mtu != MTU || err != nil {
		t.Errorf("name %q, MTU %d, %v", realName, mtu, err)
	}
	if dev.BatchSize() < 2 {
		t.Error("the device does not do segmentation offload")
	}
	if _, _, err := OpenTUN(name, MTU); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("the same name again: %v", err)
	}
}
