package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetsBuffer is how many bytes of packets wait for their reader: what a test sends at a time, with room.
const packetsBuffer = 16 << 20

// Packets is an ear and a mouth on one interface without link-layer headers of a host, below its kernel's IP: what is written leaves as it is, and
// what comes in is read before anybody judges it. In front of each packet is a virtio-net header of 10 bytes (package
// engine/segment), so super-packets and unfinished checksums are shown, and can be sent, as they are.
type Packets struct {
	file  *os.File
	index int
	heads *heads // what Heads reads into, made when it is first needed
}

// OpenPackets opens an interface of the host, which must be there. It sees no packets that the host sends.
func (h *Host) OpenPackets(device string) (p *Packets, err error) {
	return h.openPackets(device, unix.SOCK_NONBLOCK)
}

// OpenHeads is OpenPackets for who asks for [Packets.Heads] only, and waits for none: no packet wakes Go's poller, which is woken by
// each that comes to a file that can be waited for, whether somebody does or not.
func (h *Host) OpenHeads(device string) (*Packets, error) { return h.openPackets(device, 0) }

func (h *Host) openPackets(device string, flags int) (p *Packets, err error) {
	err = h.Do(func() error {
		p, err = openPackets(device, flags)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening the packets of %s on %s: %w", device, h.Name, err)
	}
	return p, nil
}

func openPackets(device string, flags int) (*Packets, error) {
	at, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1},
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetsBuffer},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, packetsBuffer},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network(unix.ETH_P_ALL), Ifindex: at.Index}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Packets{file: os.NewFile(uintptr(fd), device), index: at.Index}, nil
}

// network is a number in the network's byte order.
func network(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// Close closes it.
func (p *Packets) Close() error { return p.file.Close() }

// Write sends one: header and packet. The kernel refuses a header that contradicts the packet, and a packet longer than
// the interface's MTU that is no super-packet.
func (p *Packets) Write(b []byte) error {
	protocol := uint16(unix.ETH_P_IP)
	if len(b) > 10 && b[10]>>4 == 6 {
		protocol = unix.ETH_P_IPV6
	}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	waitErr := raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), b, 0, &unix.SockaddrLinklayer{Protocol: network(protocol), Ifindex: p.index})
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return waitErr
	}
	return err
}

// Read waits for the next one: header and packet. Later than deadline, it is os.ErrDeadlineExceeded.
func (p *Packets) Read(b []byte, deadline time.Time) (int, error) {
	if err := p.file.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	return p.file.Read(b)
}

const (
	// HeadSize is how many bytes of a packet [Packets.Heads] gives: virtio-net's header, and the longest of IPv4 and of TCP.
	HeadSize = 10 + 60 + 60
	// headsAtOnce is how many packets one system call takes.
	headsAtOnce = 64
)

// heads is what recvmmsg(2) reads into.
type heads struct {
	messages [headsAtOnce]struct { // struct mmsghdr
		header unix.Msghdr
		n      uint32
	}
	iovs [headsAtOnce]unix.Iovec
	room [headsAtOnce][HeadSize]byte
}

// Heads gives f what has come since, without waiting: the beginning of each, HeadSize bytes at most and valid until f returns, and how long
// all of it is. Who counts packets has them all for a few system calls, and need not wake up for each.
func (p *Packets) Heads(f func(head []byte, size int)) error {
	if p.heads == nil {
		h := &heads{}
		for i := range h.messages {
			h.iovs[i].Base = &h.room[i][0]
			h.iovs[i].SetLen(HeadSize)
			h.messages[i].header.Iov = &h.iovs[i]
			h.messages[i].header.SetIovlen(1)
		}
		p.heads = h
	}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	h, most := p.heads, headsAtOnce
	for n := most; n == most; {
		var errno unix.Errno
		if err := raw.Control(func(fd uintptr) {
			// MSG_TRUNC has the length told of all that there was.
			got, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&h.messages)), uintptr(most), unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
			n, errno = int(got), e
		}); err != nil {
			return err
		}
		switch errno {
		case 0:
		case unix.EAGAIN:
			return nil
		case unix.EINTR:
			n = most // again
			continue
		default:
			return os.NewSyscallError("recvmmsg", errno)
		}
		for i := range n {
			size := int(h.messages[i].n)
			f(h.room[i][:min(size, HeadSize)], size)
		}
	}
	return nil
}
