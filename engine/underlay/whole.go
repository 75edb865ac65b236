package underlay

import (
	"net/netip"

	"weft"
	"weft/host"
)

// WriteWhole is WriteTo for a datagram that nobody may make fragments of: a probe of how long packets may be. It returns
// [host.ErrTooLong] where the interface is too narrow.
func (s *Sockets) WriteWhole(id weft.LinkID, to netip.AddrPort, b []byte) error {
	to = unmap(to)
	x, err := s.socket(id, to)
	if err != nil {
		return err
	}
	return host.WriteUDPWhole(x.conn, b, to)
}
