package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// UDPListen opens n sockets on one address, over which the kernel spreads senders (SO_REUSEPORT), for n
// goroutines to read. The first is bound without the option, and given it afterwards: a second server on the
// port fails as ever, and does not quietly take half of the first one's senders. What they send is weft's own (see [Own]).
func UDPListen(network, address string, n int) ([]*net.UDPConn, error) {
	var conns []*net.UDPConn
	fail := func(err error) ([]*net.UDPConn, error) {
		for _, c := range conns {
			c.Close()
		}
		return nil, fmt.Errorf("listening on UDP %s: %w", address, err)
	}
	for i := range max(1, n) {
		config := net.ListenConfig{Control: Own}
		if i > 0 {
			config.Control = func(network, address string, raw syscall.RawConn) error {
				return errors.Join(Own(network, address, raw), reusePort(raw))
			}
		}
		c, err := config.ListenPacket(context.Background(), network, address)
		if err != nil {
			return fail(err)
		}
		conns = append(conns, c.(*net.UDPConn))
		if i == 0 && n > 1 {
			address = c.LocalAddr().String()
			if err := SharePort(conns[0]); err != nil {
				return fail(err)
			}
		}
	}
	return conns, nil
}

// prepare finds out what the kernel has and switches it on.
func (s *UDPSocket) prepare() error {
	var uname unix.Utsname
	_ = unix.Uname(&uname)
	corrupts := corruptsGSO(unix.ByteSliceToString(uname.Release[:]))
	var optErr error
	err := s.raw.Control(func(fd uintptr) {
		domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			optErr = err
			return
		}
		s.six = domain == unix.AF_INET6
		if s.info {
			if s.six {
				optErr = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
			} else {
				optErr = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
			}
		}
		// A kernel before 4.18 would pass over the control message and send the whole run as one datagram.
		_, err = unix.GetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT)
		s.gso.Store(err == nil && !corrupts)
	})
	return errors.Join(err, optErr)
}

// WithoutOffload switches runs off, in both directions.
func (s *UDPSocket) WithoutOffload() error {
	s.plain = true
	s.gso.Store(false)
	return s.receiveRuns(0)
}

// WithoutLocal has the kernel not say any more which address of this machine a message was sent to (UDPRead.Local), which it does for each.
// It is for before the socket is used.
func (s *UDPSocket) WithoutLocal() error {
	if !s.info {
		return nil
	}
	s.info = false
	level, option := unix.SOL_IP, unix.IP_PKTINFO
	if s.six {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVPKTINFO
	}
	var optErr error
	err := s.raw.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), level, option, 0) })
	return errors.Join(err, optErr)
}

// receiveRuns has runs of one sender received as one (1), or not (0).
func (s *UDPSocket) receiveRuns(on int) error {
	if on == 0 && !s.gro.Load() {
		return nil
	}
	var optErr error
	err := s.raw.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, on) }) // 5.0
	s.gro.Store(on == 1 && err == nil && optErr == nil)
	return errors.Join(err, optErr)
}

// Stamp has the kernel say when each message came (SO_TIMESTAMPNS_NEW, Linux 5.1), so that UDPRead.Unread is known: a reader that waited for a
// processor does not take that for the network's delay. It costs the machine a look at the clock for every packet of any socket.
func (s *UDPSocket) Stamp() error {
	var optErr error
	err := s.raw.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1) })
	if err = errors.Join(err, optErr); err != nil {
		return fmt.Errorf("asking when messages came to a UDP socket on %s: %w", s.local, err)
	}
	s.stamps.Store(true)
	return nil
}

// mmsghdr is recvmmsg(2)'s and sendmmsg(2)'s.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// udpName is a destination as the kernel takes it.
type udpName struct {
	name    unix.RawSockaddrInet6
	namelen uint32
	infolen int
	info    [5]uint64 // a control message that says where it comes from
}

func (d *udpName) set(s *UDPSocket, to netip.AddrPort, from netip.Addr) {
	*d = udpName{}
	port := (*[2]byte)(unsafe.Pointer(&d.name.Port)) // at the same place in both families' names
	binary.BigEndian.PutUint16(port[:], to.Port())
	if s.six {
		d.name.Family = unix.AF_INET6
		d.name.Addr = to.Addr().As16()
		d.name.Scope_id = scopeOf(to.Addr())
		d.namelen = unix.SizeofSockaddrInet6
	} else {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&d.name))
		four.Family = unix.AF_INET
		if ip := to.Addr().Unmap(); ip.Is4() {
			four.Addr = ip.As4()
		}
		d.namelen = unix.SizeofSockaddrInet4
	}
	if !s.info || !from.IsValid() || from.IsMulticast() {
		return
	}
	info := (*[40]byte)(unsafe.Pointer(&d.info))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&d.info))
	if s.six {
		h.Level, h.Type = unix.SOL_IPV6, unix.IPV6_PKTINFO
		h.SetLen(unix.CmsgLen(unix.SizeofInet6Pktinfo))
		ip := from.As16()
		copy(info[unix.CmsgLen(0):], ip[:])
		d.infolen = unix.CmsgSpace(unix.SizeofInet6Pktinfo)
	} else if ip := from.Unmap(); ip.Is4() {
		h.Level, h.Type = unix.SOL_IP, unix.IP_PKTINFO
		h.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
		four := ip.As4()
		copy(info[unix.CmsgLen(0)+4:], four[:]) // ipi_spec_dst
		d.infolen = unix.CmsgSpace(unix.SizeofInet4Pktinfo)
	}
}

func scopeOf(a netip.Addr) uint32 {
	zone := a.Zone()
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifi.Index)
	}
	return 0
}

// udpSystem is the kernel's view of what a writer sends.
type udpSystem struct {
	messages [UDPBatch]mmsghdr
	which    [UDPBatch]int // of the writer's messages
	iovs     [udpPieces]unix.Iovec
	controls [UDPBatch][8]uint64 // 64 bytes: where from (40), segment size (24)

	send     func(fd uintptr)      // sends messages[from:to]
	wait     func(fd uintptr) bool // does too, and is false where the socket is full
	from, to int
	sent     int
	errno    syscall.Errno
}

func (y *udpSystem) init() {
	y.send = y.attempt
	y.wait = func(fd uintptr) bool {
		y.attempt(fd)
		return y.errno != unix.EAGAIN
	}
}

func (y *udpSystem) attempt(fd uintptr) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&y.messages[y.from])), uintptr(y.to-y.from), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		y.sent, y.errno = int(n), errno
		if errno != 0 {
			y.sent = 0
		}
		return
	}
}

func (y *udpSystem) sendmmsg(s *UDPSocket, from, to int, patient bool) (sent int, errno syscall.Errno) {
	y.from, y.to = from, to
	var err error
	if patient {
		err = s.raw.Write(y.wait)
	} else {
		err = s.raw.Control(y.send)
	}
	if err != nil {
		return 0, unix.EBADF
	}
	return y.sent, y.errno
}

// send sends all messages, socket by socket.
func (w *UDPWriter) send() {
	for i := range w.messages {
		if s := w.messages[i].to; s != nil {
			w.sendOn(s.socket, i)
		}
	}
}

// sendOn sends the messages of one socket, from one on, and takes them out.
func (w *UDPWriter) sendOn(s *UDPSocket, from int) {
	y := &w.system
	n, iov := 0, 0
	for i := from; i < len(w.messages); i++ {
		m := &w.messages[i]
		if m.to == nil || m.to.socket != s {
			continue
		}
		first := iov
		for p := m.first; p >= 0; p = w.pieces[p].next {
			y.iovs[iov].Base = &w.pieces[p].data[0]
			y.iovs[iov].SetLen(len(w.pieces[p].data))
			iov++
		}
		y.head(n, m.to, first, iov-first, m.segment, m.datagrams > 1)
		y.which[n] = i
		n++
	}
	for at := 0; at < n; {
		sent, errno := y.sendmmsg(s, at, n, w.Patient)
		for range sent {
			m := &w.messages[y.which[at]]
			w.count.add(UDPCount{Datagrams: m.datagrams, Bytes: m.size})
			m.to = nil
			at++
		}
		if errno == 0 {
			continue
		}
		m := &w.messages[y.which[at]]
		switch full := errno == unix.EAGAIN || errno == unix.ENOBUFS; {
		case full:
			for ; at < n; at++ {
				m := &w.messages[y.which[at]]
				w.count.add(m.lost(true))
				m.to = nil
			}
			return
		case m.datagrams > 1:
			if errno == unix.EIO {
				s.gso.Store(false) // the network card cannot make the checksums
			} else {
				m.to.refused(m.segment)
			}
			w.apart(s, m)
		default:
			w.count.add(m.lost(false))
		}
		m.to = nil
		at++
	}
}

// apart sends the datagrams of a run, which the kernel refused as one, one by one.
func (w *UDPWriter) apart(s *UDPSocket, m *message) {
	if w.spare == nil {
		w.spare = &udpSystem{}
		w.spare.init()
	}
	y, n, size := w.spare, 0, 0
	out := func() {
		for at := 0; at < n; {
			sent, errno := y.sendmmsg(s, at, n, w.Patient)
			w.count.Datagrams += sent
			at += sent
			switch {
			case errno == unix.EAGAIN || errno == unix.ENOBUFS:
				w.count.Full += n - at
				at = n
			case errno != 0:
				w.count.Failed++
				at++
			}
		}
		n = 0
	}
	for data := range w.datagrams(m) {
		y.iovs[n].Base = &data[0]
		y.iovs[n].SetLen(len(data))
		y.head(n, m.to, n, 1, 0, false)
		size += len(data)
		if n++; n == UDPBatch {
			out()
		}
	}
	out()
	w.count.Bytes += size
}

// head fills in the header of one message.
func (y *udpSystem) head(n int, to *UDPDest, iov, iovs, segment int, run bool) {
	h := &y.messages[n].hdr
	h.Name = (*byte)(unsafe.Pointer(&to.system.name))
	h.Namelen = to.system.namelen
	h.Iov = &y.iovs[iov]
	h.SetIovlen(iovs)
	control := (*[64]byte)(unsafe.Pointer(&y.controls[n]))
	size := copy(control[:], (*[40]byte)(unsafe.Pointer(&to.system.info))[:to.system.infolen])
	if run {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&control[size]))
		c.Level, c.Type = unix.SOL_UDP, unix.UDP_SEGMENT
		c.SetLen(unix.CmsgLen(2))
		binary.NativeEndian.PutUint16(control[size+unix.CmsgLen(0):], uint16(segment))
		size += unix.CmsgSpace(2)
	}
	h.Control = nil
	if size > 0 {
		h.Control = &control[0]
	}
	h.SetControllen(size)
}

// Unread reports whether a datagram waits in the socket.
func (s *UDPSocket) Unread() bool {
	waiting := 0
	_ = s.raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	return waiting > 0
}
