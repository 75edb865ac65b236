package host

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WriteUDPTTL sends one datagram whose IP header has this time to live, or hop limit, which is the datagram's
// alone: what else the socket sends keeps the system's. The address is of the socket's own family.
func WriteUDPTTL(conn DatagramConn, b []byte, to netip.AddrPort, ttl uint8) error {
	var control [(unix.SizeofCmsghdr + 8) / 8]uint64 // aligned, with room for one int
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control))
	h.Level, h.Type = unix.SOL_IP, unix.IP_TTL
	if to.Addr().Is6() && !to.Addr().Is4In6() {
		h.Level, h.Type = unix.SOL_IPV6, unix.IPV6_HOPLIMIT
	}
	h.SetLen(unix.CmsgLen(4))
	oob := (*[unix.SizeofCmsghdr + 8]byte)(unsafe.Pointer(&control))[:]
	binary.NativeEndian.PutUint32(oob[unix.CmsgLen(0):], uint32(ttl))
	var err error
	// By its type, or what is on the stack here would have to be allocated.
	switch c := conn.(type) {
	case *UnpolledUDP:
		_, _, err = c.WriteMsgUDPAddrPort(b, oob[:unix.CmsgSpace(4)], to)
	case *net.UDPConn:
		_, _, err = c.WriteMsgUDPAddrPort(b, oob[:unix.CmsgSpace(4)], to)
	default:
		err = ErrNotSupported
	}
	if err != nil {
		return fmt.Errorf("sending with a time to live of %d: %w", ttl, err)
	}
	return nil
}
