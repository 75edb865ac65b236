package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"

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
}

// OpenPackets opens an interface of the host, which must be there. It sees no packets that the host sends.
func (h *Host) OpenPackets(device string) (p *Packets, err error) {
	err = h.Do(func() error {
		p, err = openPackets(device)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening the packets of %s on %s: %w", device, h.Name, err)
	}
	return p, nil
}

func openPackets(device string) (*Packets, error) {
	at, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
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
