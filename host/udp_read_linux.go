package host

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// udpReadMost is how many bytes are taken at once: what is sent on from where it lies shall still be in a
	// core's cache. Runs are up to 64 KiB, so fewer of them are asked for than of single datagrams.
	udpReadMost  = 512 << 10
	udpReadLeast = 4
	// udpControl has room for the control messages of a received datagram, in bytes.
	udpControl = 128
)

// UDPReader receives from one socket. It is one goroutine's, which closes it when it reads no more.
type UDPReader struct {
	socket *UDPSocket
	read   func(fd uintptr) bool
	n      int
	want   int  // messages of the next system call, at most
	more   bool // the last one brought as many as it wanted
	errno  syscall.Errno
	at     int64 // when they were read, in nanoseconds of Unix time

	patience Patience
	look     func(fd uintptr) // once, without waiting

	messages [UDPBatch]mmsghdr
	iovs     [UDPBatch]unix.Iovec
	names    [UDPBatch]unix.RawSockaddrInet6
	controls [UDPBatch][udpControl / 8]uint64
	memory   Slab
	reads    [UDPBatch]UDPRead
	zones    map[uint32]string
}

// NewUDPReader makes a reader. Its buffers are 2 MiB, of which memory is taken as far as messages were written to them.
func NewUDPReader(s *UDPSocket) *UDPReader {
	if !s.plain {
		_ = s.receiveRuns(1) // without, each datagram is a message of its own
	}
	r := &UDPReader{socket: s, memory: TakeSlab(), zones: map[uint32]string{}}
	r.read, r.look = r.attempt, func(fd uintptr) { r.once(fd) }
	for i := range r.messages {
		r.iovs[i].Base = &r.memory.Room(i)[0]
		r.iovs[i].SetLen(1 << 16)
		h := &r.messages[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = (*byte)(unsafe.Pointer(&r.controls[i]))
	}
	r.n, r.want = UDPBatch, UDPBatch
	return r
}

// Close gives the buffers back. What Read returned is valid no more; the socket stays open.
func (r *UDPReader) Close() {
	r.memory.Give()
	r.memory = nil
}

// Read waits for messages and returns them, valid until the next Read or TryRead.
func (r *UDPReader) Read() ([]UDPRead, error) {
	for {
		r.clear()
		if err := r.socket.raw.Read(r.read); err != nil {
			return nil, err
		}
		if reads, err := r.taken(); len(reads) > 0 || err != nil {
			return reads, err
		}
	}
}

// TryRead is Read without waiting: there may be nothing.
func (r *UDPReader) TryRead() ([]UDPRead, error) {
	r.clear()
	if err := r.socket.raw.Control(r.look); err != nil {
		return nil, err
	}
	return r.taken()
}

// More reports whether the last read took as much as one takes: there may be more.
func (r *UDPReader) More() bool { return r.more }

// clear makes ready for a system call.
func (r *UDPReader) clear() {
	for i := range r.n {
		h := &r.messages[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(udpControl)
		h.Flags = 0
	}
	r.n, r.errno, r.more = 0, 0, false
}

// taken is what the system call has brought, which may be nothing that is of use.
func (r *UDPReader) taken() ([]UDPRead, error) {
	if r.errno != 0 { // an error that the socket remembered, of something sent, unless it is closed
		if errors.Is(r.errno, unix.EBADF) || errors.Is(r.errno, unix.ENOTSOCK) {
			return nil, r.errno
		}
		return nil, nil
	}
	n, size := 0, 0
	if r.n > 0 && r.socket.stamps.Load() {
		r.at = time.Now().UnixNano() // by the clock that is set, as stamps are
	}
	for i := range r.n {
		if r.parse(i, &r.reads[n]) {
			size += len(r.reads[n].Data)
			n++
		}
	}
	r.more = r.n == r.want
	switch {
	case size > udpReadMost && r.want > udpReadLeast:
		r.want /= 2
	case size < udpReadMost/4 && r.want < UDPBatch:
		r.want *= 2
	}
	return r.reads[:n], nil
}

// attempt reads, and looks again a few times. It is false where it is to be waited.
func (r *UDPReader) attempt(fd uintptr) bool {
	if r.once(fd) {
		return true
	}
	looks := r.patience.Looks()
	for range looks {
		LetOthers()
		if r.once(fd) {
			r.patience.Found()
			return true
		}
	}
	if looks > 0 {
		r.patience.Missed()
	}
	return false
}

// once is one system call. It is false if there is nothing.
func (r *UDPReader) once(fd uintptr) bool {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.messages[0])), uintptr(r.want), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		case 0:
			r.n = int(n)
			return true
		default:
			r.errno = errno
			return true
		}
	}
}

func (r *UDPReader) parse(i int, m *UDPRead) bool {
	h := &r.messages[i]
	if h.hdr.Flags&unix.MSG_TRUNC != 0 {
		return false
	}
	name := &r.names[i]
	port := (*[2]byte)(unsafe.Pointer(&name.Port))
	var ip netip.Addr
	switch name.Family {
	case unix.AF_INET:
		ip = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr)
	case unix.AF_INET6:
		ip = netip.AddrFrom16(name.Addr).Unmap()
		if name.Scope_id != 0 && ip.Is6() {
			ip = ip.WithZone(r.zone(name.Scope_id))
		}
	default:
		return false
	}
	m.Data = r.memory.Room(i)[:h.n:h.n]
	m.From = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(port[:]))
	m.Segment, m.Local, m.Unread = len(m.Data), netip.Addr{}, 0
	control := (*[udpControl]byte)(unsafe.Pointer(&r.controls[i]))[:h.hdr.Controllen]
	for len(control) >= unix.SizeofCmsghdr {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		size := int(c.Len)
		if size < unix.SizeofCmsghdr || size > len(control) {
			break
		}
		data := control[unix.CmsgLen(0):size]
		switch {
		case c.Level == unix.SOL_UDP && c.Type == unix.UDP_GRO && len(data) >= 4:
			if n := int(binary.NativeEndian.Uint32(data)); n > 0 && n < len(m.Data) {
				m.Segment = n
			}
		case c.Level == unix.SOL_SOCKET && c.Type == unix.SO_TIMESTAMPNS_NEW && len(data) >= 16 && r.at != 0:
			came := int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:]))
			m.Unread = lain(time.Duration(r.at - came))
		case c.Level == unix.SOL_IP && c.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			m.Local = netip.AddrFrom4([4]byte(data[8:12]))
		case c.Level == unix.SOL_IPV6 && c.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			m.Local = netip.AddrFrom16([16]byte(data[:16])).Unmap()
		}
		control = control[min(len(control), unix.CmsgSpace(len(data))):]
	}
	return true
}

// unreadMost is the longest that a message is believed to have lain in a socket: more, and the clock was set meanwhile.
const unreadMost = time.Second

// lain is how long a message lay in a socket by the clock that is set, which may have been set.
func lain(d time.Duration) time.Duration {
	if d < 0 || d > unreadMost {
		return 0
	}
	return d
}

// zone names the scope of a link-local address by its number, which is the same on every call.
func (r *UDPReader) zone(scope uint32) string {
	z, ok := r.zones[scope]
	if !ok {
		z = strconv.FormatUint(uint64(scope), 10)
		r.zones[scope] = z
	}
	return z
}
