package lease

import (
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/mdlayher/ndp"
)

const (
	// RouterLifetime is for how long clients take this machine for a router after they have heard of it (RFC 4861 section 6.2.1).
	RouterLifetime = 30 * time.Minute
	// maxDUID is the longest identifier of a client, in bytes (RFC 8415 section 11.1).
	maxDUID = 130
)

// Config6 is what clients are told of IPv6.
type Config6 struct {
	Addr     netip.Addr       // the one that there is to give
	Hardware net.HardwareAddr // of the interface: what the server is told apart by, and where the gateway is
	// Resolvers may be none.
	Resolvers []netip.Addr
	MTU       int // bytes; 0 is not told
}

// Server6 gives one address of IPv6 to the client that asked last, and says where the gateway is. It is not safe for concurrent use.
type Server6 struct {
	cfg   Config6
	id    dhcpv6.DUID
	lease Lease // whose id is the client's; "": it is nobody's
}

// New6 makes a server whose address is nobody's.
func New6(cfg Config6) (*Server6, error) {
	if !cfg.Addr.Is6() || cfg.Addr.Is4In6() || len(cfg.Hardware) == 0 {
		return nil, errors.New("DHCPv6 gives an address of IPv6, at an interface with a hardware address")
	}
	return &Server6{cfg: cfg, id: &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: cfg.Hardware}}, nil
}

// Leases is the address, if it is given.
func (s *Server6) Leases(now time.Time) []Lease {
	if s.lease.id == "" || !now.Before(s.lease.Expires) {
		return nil
	}
	return []Lease{s.lease}
}

// Advertisement is what routers tell of themselves (RFC 4861 section 4.2): the default route and how long packets may be, that
// addresses are to be asked for, and name servers (RFC 8106). No network is on the link: the client has its address alone there, and
// the rest of that address's network is elsewhere. Over is the last one, after which this machine is no router any more.
func (s *Server6) Advertisement(over bool) *ndp.RouterAdvertisement {
	m := &ndp.RouterAdvertisement{
		CurrentHopLimit: 64, ManagedConfiguration: true, RouterLifetime: RouterLifetime,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: s.cfg.Hardware}},
	}
	if s.cfg.MTU > 0 {
		m.Options = append(m.Options, &ndp.MTU{MTU: uint32(s.cfg.MTU)})
	}
	dns := &ndp.RecursiveDNSServer{Lifetime: RouterLifetime, Servers: s.cfg.Resolvers}
	if over {
		m.RouterLifetime, dns.Lifetime = 0, 0
	}
	if len(dns.Servers) > 0 {
		m.Options = append(m.Options, dns)
	}
	return m
}

// Handle takes a message and returns the answer, which goes to where the message came from; nil: there is none. There are no relay
// agents (what comes by one is not answered), as the client is on this machine's own link.
func (s *Server6) Handle(now time.Time, b []byte) []byte {
	m, err := dhcpv6.MessageFromBytes(b)
	if err != nil {
		return nil
	}
	client := m.Options.ClientID()
	server := m.Options.ServerID()
	if client != nil && len(client.ToBytes()) > maxDUID || server != nil && !slices.Equal(server.ToBytes(), s.id.ToBytes()) {
		return nil
	}
	// RFC 8415 section 16: who asks whoever is there names nobody; who asks this server names it.
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRebind:
		if client == nil || server != nil {
			return nil
		}
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		if client == nil || server == nil {
			return nil
		}
	case dhcpv6.MessageTypeInformationRequest:
		if len(m.Options.IANA())+len(m.Options.IATA())+len(m.Options.IAPD()) > 0 {
			return nil
		}
	default:
		return nil
	}
	r := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: m.TransactionID}
	r.AddOption(dhcpv6.OptServerID(s.id))
	if client != nil {
		r.AddOption(dhcpv6.OptClientID(client))
	}
	s.answer(now, m, r)
	return r.ToBytes()
}

// answer fills in what a message is answered with (RFC 8415 section 18.3).
func (s *Server6) answer(now time.Time, m, r *dhcpv6.Message) {
	status := func(code iana.StatusCode) { r.AddOption(&dhcpv6.OptStatusCode{StatusCode: code}) }
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit:
		if m.GetOneOption(dhcpv6.OptionRapidCommit) == nil {
			r.MessageType = dhcpv6.MessageTypeAdvertise
		} else {
			r.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionRapidCommit})
		}
	case dhcpv6.MessageTypeConfirm:
		ours := true
		for _, a := range asked(m) {
			ours = ours && a == s.cfg.Addr
		}
		if ours {
			status(iana.StatusSuccess)
		} else {
			status(iana.StatusNotOnLink)
		}
		return
	case dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		// One that is found in use is so by a client that was replaced, and there is no other to give.
		if s.lease.id == idOf(m) && slices.Contains(asked(m), s.cfg.Addr) {
			s.lease = Lease{}
		}
		status(iana.StatusSuccess)
		return
	}
	if len(s.cfg.Resolvers) > 0 {
		var list []net.IP
		for _, a := range s.cfg.Resolvers {
			list = append(list, ipOf(a))
		}
		r.AddOption(dhcpv6.OptDNS(list...))
	}
	for i, ia := range m.Options.IANA() {
		given := &dhcpv6.OptIANA{IaId: ia.IaId, T1: Term / 2, T2: Term * 4 / 5}
		if i > 0 {
			given.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail})
			r.AddOption(given)
			continue
		}
		for _, had := range ia.Options.Addresses() { // is over at once
			if a, ok := netip.AddrFromSlice(had.IPv6Addr); ok && a != s.cfg.Addr && m.MessageType != dhcpv6.MessageTypeSolicit {
				given.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: had.IPv6Addr})
			}
		}
		given.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: ipOf(s.cfg.Addr), PreferredLifetime: Term, ValidLifetime: Term})
		r.AddOption(given)
		if r.MessageType == dhcpv6.MessageTypeReply {
			s.lease = Lease{Addr: s.cfg.Addr, Client: callOf(m.Options.ClientID()), Expires: now.Add(Term), id: idOf(m), bound: true}
		}
	}
	for _, ia := range m.Options.IAPD() {
		none := &dhcpv6.OptIAPD{IaId: ia.IaId}
		none.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoPrefixAvail})
		r.AddOption(none)
	}
}

// asked are the addresses that a message is about.
func asked(m *dhcpv6.Message) (out []netip.Addr) {
	for _, ia := range m.Options.IANA() {
		for _, a := range ia.Options.Addresses() {
			if a, ok := netip.AddrFromSlice(a.IPv6Addr); ok {
				out = append(out, a)
			}
		}
	}
	return out
}

func idOf(m *dhcpv6.Message) string { return string(m.Options.ClientID().ToBytes()) }

// callOf is what people know a client by: its hardware address, if that is in its identifier.
func callOf(id dhcpv6.DUID) string {
	switch id := id.(type) {
	case *dhcpv6.DUIDLL:
		return id.LinkLayerAddr.String()
	case *dhcpv6.DUIDLLT:
		return id.LinkLayerAddr.String()
	}
	return hex.EncodeToString(id.ToBytes())
}
