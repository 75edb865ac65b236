// Package lease gives clients behind a portal their address by DHCP (RFC 2131): the one public address to the one client that
// there is, or addresses of a private network to many.
//
// It is the protocol and the table, and neither socket nor clock: who serves a port hands in what came, with the time, and sends what
// comes back. It is written for one cable or one small network: there are no relay agents (what comes by one is not answered), no
// reservations, and no file. After a new start a client that asks to go on with the address that it has gets it, if nobody else
// has been given it meanwhile; that is what makes a file unnecessary.
//
// One public address goes to whoever asked last: a client that is replaced by another machine does not wait for a lease to
// end. Of a private network each client keeps its address as long as others are free; past that the one whose lease ended
// first is given away. A client is told apart by its client identifier, or else its hardware address.
//
// Of IPv6 ([Server6], RFC 8415) there is the one public address only. Clients do not make addresses of a prefix (RFC 4862), because what they
// would make is not the one that is handed over; so the router's advertisements have no prefix in them, and send clients to DHCPv6.
package lease

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	// Term is for how long an address is given. Clients ask again at half of it (RFC 2131 section 4.4.5), which is how soon
	// a change of the address reaches them.
	Term = 10 * time.Minute
	// offered is for how long an address is held for who was offered it and has not asked for it.
	offered = time.Minute
	// declined is for how long an address is left alone that somebody has found in use.
	declined = 10 * time.Minute
	// maxName is the longest host name that is kept, in bytes: a DNS label's.
	maxName = 63
)

// clientPort is where clients hear (RFC 2131 section 4.1).
const clientPort = 68

// Config is what clients are told.
type Config struct {
	Server  netip.Addr   // of the server, at the interface
	Net     netip.Prefix // the network that clients take themselves to be in
	Single  netip.Addr   // the one address that there is to give; invalid: those of Net
	Gateway netip.Addr
	// Resolvers may be none.
	Resolvers []netip.Addr
	MTU       int // bytes; 0 is not told
}

// A Lease is an address that is given.
type Lease struct {
	Addr    netip.Addr
	Client  string // hardware address
	Name    string // as the client calls itself, made harmless; may be empty
	Expires time.Time

	id    string // by which the client is told apart; "": the address is not to be given
	bound bool
}

// A Server keeps the table. It is not safe for concurrent use.
type Server struct {
	cfg  Config
	list []Lease
}

// New makes a server without leases.
func New(cfg Config) (*Server, error) {
	if !cfg.Server.Is4() || !cfg.Net.Addr().Is4() || !cfg.Gateway.Is4() || cfg.Single.IsValid() && !cfg.Single.Is4() {
		return nil, errors.New("DHCP gives addresses of IPv4: server, network and gateway have to be of it")
	}
	return &Server{cfg: cfg}, nil
}

// Leases are the addresses that are given, in their order.
func (s *Server) Leases(now time.Time) (out []Lease) {
	for _, l := range s.list {
		if l.bound && now.Before(l.Expires) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Lease) int { return a.Addr.Compare(b.Addr) })
	return out
}

// Handle takes a message and returns the answer with where to send it; nil: there is none.
func (s *Server) Handle(now time.Time, b []byte) (answer []byte, to netip.AddrPort) {
	m, err := dhcpv4.FromBytes(b)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootRequest || len(m.ClientHWAddr) == 0 || !m.GatewayIPAddr.Equal(net.IPv4zero) {
		return nil, to
	}
	if id := m.ServerIdentifier(); id != nil && addrOf(id) != s.cfg.Server {
		return nil, to // it has chosen another
	}
	client := clientOf(m)
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		l := s.find(now, client, addrOf(m.RequestedIPAddress()))
		if l == nil {
			return nil, to
		}
		l.Expires = later(l.Expires, now.Add(offered))
		return s.answer(m, dhcpv4.MessageTypeOffer, l.Addr)
	case dhcpv4.MessageTypeRequest:
		want := addrOf(m.RequestedIPAddress())
		if !want.IsValid() {
			want = addrOf(m.ClientIPAddr)
		}
		l := s.find(now, client, want)
		if l == nil || l.Addr != want {
			return s.answer(m, dhcpv4.MessageTypeNak, netip.Addr{})
		}
		l.bound, l.Expires, l.Client, l.Name = true, now.Add(Term), m.ClientHWAddr.String(), cleanName(m.HostName())
		return s.answer(m, dhcpv4.MessageTypeAck, l.Addr)
	case dhcpv4.MessageTypeRelease:
		s.list = slices.DeleteFunc(s.list, func(l Lease) bool { return l.id == client && l.Addr == addrOf(m.ClientIPAddr) })
	case dhcpv4.MessageTypeDecline:
		for i := range s.list {
			if l := &s.list[i]; l.id == client && l.Addr == addrOf(m.RequestedIPAddress()) && l.Addr != s.cfg.Single {
				*l = Lease{Addr: l.Addr, Expires: now.Add(declined)}
			}
		}
	case dhcpv4.MessageTypeInform:
		return s.answer(m, dhcpv4.MessageTypeAck, netip.Addr{})
	}
	return nil, to
}

// find is the client's lease: the one that it has, or one on the address that it wants, or on any that is free; nil: there
// is none.
func (s *Server) find(now time.Time, client string, want netip.Addr) *Lease {
	if s.cfg.Single.IsValid() {
		if len(s.list) == 0 || s.list[0].id != client {
			s.list = []Lease{{Addr: s.cfg.Single, id: client}}
		}
		return &s.list[0]
	}
	if i := slices.IndexFunc(s.list, func(l Lease) bool { return l.id == client }); i >= 0 {
		return &s.list[i]
	}
	taken := func(a netip.Addr) bool {
		return slices.ContainsFunc(s.list, func(l Lease) bool { return l.Addr == a })
	}
	if s.gives(want) && !taken(want) {
		s.list = append(s.list, Lease{Addr: want, id: client})
		return &s.list[len(s.list)-1]
	}
	for a := s.cfg.Net.Masked().Addr().Next(); s.cfg.Net.Contains(a) && len(s.list) < s.size(); a = a.Next() {
		if s.gives(a) && !taken(a) {
			s.list = append(s.list, Lease{Addr: a, id: client})
			return &s.list[len(s.list)-1]
		}
	}
	oldest := -1
	for i, l := range s.list {
		if !now.Before(l.Expires) && (oldest < 0 || l.Expires.Before(s.list[oldest].Expires)) {
			oldest = i
		}
	}
	if oldest < 0 {
		return nil
	}
	s.list[oldest] = Lease{Addr: s.list[oldest].Addr, id: client}
	return &s.list[oldest]
}

// maxLeases bounds the table: a network of a /8 is not kept in memory because somebody asks under many names.
const maxLeases = 1024

// size is how many addresses there are to give.
func (s *Server) size() int { return min(maxLeases, 1<<(32-s.cfg.Net.Bits())-3) }

// gives tells whether an address of the network is a client's to have.
func (s *Server) gives(a netip.Addr) bool {
	if !a.Is4() || !s.cfg.Net.Contains(a) || a == s.cfg.Server || a == s.cfg.Gateway || a == s.cfg.Net.Masked().Addr() {
		return false
	}
	return a.Next().IsValid() && s.cfg.Net.Contains(a.Next()) // else it is the broadcast address
}

// answer makes an answer, and says where it goes (RFC 2131 section 4.1). A client without an address is answered by broadcast:
// to send to it alone would take its hardware address in this machine's tables before it has said that it has the other.
func (s *Server) answer(m *dhcpv4.DHCPv4, kind dhcpv4.MessageType, addr netip.Addr) ([]byte, netip.AddrPort) {
	changes := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(ipOf(s.cfg.Server))),
	}
	if kind != dhcpv4.MessageTypeNak {
		changes = append(changes,
			dhcpv4.WithOption(dhcpv4.OptSubnetMask(net.CIDRMask(s.cfg.Net.Bits(), 32))),
			dhcpv4.WithOption(dhcpv4.OptRouter(ipOf(s.cfg.Gateway))))
		if !s.cfg.Net.Contains(s.cfg.Gateway) { // RFC 3442: first that the gateway is on the link, then what it is for
			changes = append(changes, dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(
				&dhcpv4.Route{Dest: &net.IPNet{IP: ipOf(s.cfg.Gateway), Mask: net.CIDRMask(32, 32)}, Router: net.IPv4zero},
				&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Router: ipOf(s.cfg.Gateway)})))
		}
		if len(s.cfg.Resolvers) > 0 {
			var list []net.IP
			for _, r := range s.cfg.Resolvers {
				list = append(list, ipOf(r))
			}
			changes = append(changes, dhcpv4.WithOption(dhcpv4.OptDNS(list...)))
		}
		if s.cfg.MTU > 0 {
			changes = append(changes, dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, binary.BigEndian.AppendUint16(nil, uint16(s.cfg.MTU))))
		}
	}
	if addr.IsValid() {
		changes = append(changes, dhcpv4.WithYourIP(ipOf(addr)), dhcpv4.WithLeaseTime(uint32(Term/time.Second)))
	}
	r, err := dhcpv4.NewReplyFromRequest(m, changes...)
	if err != nil {
		return nil, netip.AddrPort{}
	}
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), clientPort)
	if c := addrOf(m.ClientIPAddr); c.IsValid() && kind != dhcpv4.MessageTypeNak {
		if addr.IsValid() && c != addr || !s.gives(c) && c != s.cfg.Single {
			return nil, netip.AddrPort{} // it names somebody else's
		}
		to = netip.AddrPortFrom(c, clientPort)
	}
	return r.ToBytes(), to
}

// clientOf is what tells a client apart.
func clientOf(m *dhcpv4.DHCPv4) string {
	if id := m.Options.Get(dhcpv4.OptionClientIdentifier); len(id) > 0 {
		return "i" + string(id)
	}
	return "h" + string(m.ClientHWAddr)
}

// cleanName makes what a client calls itself fit for a terminal and a log.
func cleanName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return -1
	}, s)
	return s[:min(len(s), maxName)]
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// addrOf is an address, the invalid one of none.
func addrOf(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

func ipOf(a netip.Addr) net.IP { return a.AsSlice() }
