package lease

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/mdlayher/ndp"
)

var public6 = Config6{Addr: addr("2001:db8::7"), Hardware: hardware(9), Resolvers: []netip.Addr{addr("2001:db8::53")}, MTU: 1420}

func server6(t testing.TB, cfg Config6) *Server6 {
	t.Helper()
	s, err := New6(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func duid(n byte) dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: hardware(n)}
}

// asking is a message of a client that wants an address, or has some.
func asking(kind dhcpv6.MessageType, client byte, has ...netip.Addr) *dhcpv6.Message {
	m := &dhcpv6.Message{MessageType: kind, TransactionID: dhcpv6.TransactionID{1, 2, client}}
	m.AddOption(dhcpv6.OptClientID(duid(client)))
	ia := &dhcpv6.OptIANA{IaId: [4]byte{0, 0, 0, client}}
	for _, a := range has {
		ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: a.AsSlice()})
	}
	m.AddOption(ia)
	return m
}

// tell6 hands a message in and parses what is answered; nil: nothing is.
func tell6(t testing.TB, s *Server6, now time.Time, m *dhcpv6.Message) *dhcpv6.Message {
	t.Helper()
	b := s.Handle(now, m.ToBytes())
	if b == nil {
		return nil
	}
	r, err := dhcpv6.MessageFromBytes(b)
	if err != nil {
		t.Fatalf("the answer cannot be read: %v", err)
	}
	if r.TransactionID != m.TransactionID || !r.Options.ServerID().Equal(duid(9)) {
		t.Fatalf("%v is no answer to %v", r, m)
	}
	return r
}

// given are the addresses that an answer gives, and those that it takes.
func given(m *dhcpv6.Message) (out, over []netip.Addr) {
	for _, ia := range m.Options.IANA() {
		for _, a := range ia.Options.Addresses() {
			at, _ := netip.AddrFromSlice(a.IPv6Addr)
			if a.ValidLifetime > 0 {
				out = append(out, at)
			} else {
				over = append(over, at)
			}
		}
	}
	return out, over
}

func only(t *testing.T, m *dhcpv6.Message, kind dhcpv6.MessageType) {
	t.Helper()
	if m == nil || m.MessageType != kind {
		t.Fatalf("the answer is %v, not %v", m, kind)
	}
	if got, _ := given(m); len(got) != 1 || got[0] != public6.Addr {
		t.Fatalf("%v is given, not %v", got, public6.Addr)
	}
}

func TestTheClientThatAskedLastHasThePublicAddressOfIPv6(t *testing.T) {
	s := server6(t, public6)
	only(t, tell6(t, s, start, asking(dhcpv6.MessageTypeSolicit, 1)), dhcpv6.MessageTypeAdvertise)
	if l := s.Leases(start); len(l) != 0 {
		t.Errorf("what is only offered is given: %v", l)
	}
	ask := asking(dhcpv6.MessageTypeRequest, 1)
	ask.AddOption(dhcpv6.OptServerID(duid(9)))
	r := tell6(t, s, start, ask)
	only(t, r, dhcpv6.MessageTypeReply)
	if dns := r.Options.DNS(); len(dns) != 1 || !dns[0].Equal(net.ParseIP("2001:db8::53")) {
		t.Errorf("the name servers are %v", dns)
	}
	if ia := r.Options.OneIANA(); ia.IaId != [4]byte{0, 0, 0, 1} || ia.T1 != Term/2 || ia.Options.OneAddress().ValidLifetime != Term {
		t.Errorf("it is given as %v", ia)
	}
	held := func(now time.Time, client byte) {
		t.Helper()
		want := []Lease{{Addr: public6.Addr, Client: hardware(client).String(), Expires: now.Add(Term)}}
		if d := cmp.Diff(want, s.Leases(now), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.FilterPath(func(p cmp.Path) bool {
			return p.Last().String() == ".id" || p.Last().String() == ".bound"
		}, cmp.Ignore())); d != "" {
			t.Error(d)
		}
	}
	held(start, 1)

	// Another machine takes its place, by a short exchange; the first one's release is not its own any more.
	short := asking(dhcpv6.MessageTypeSolicit, 2)
	short.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionRapidCommit})
	r = tell6(t, s, start.Add(time.Second), short)
	only(t, r, dhcpv6.MessageTypeReply)
	if r.GetOneOption(dhcpv6.OptionRapidCommit) == nil {
		t.Error("the short exchange is not said to be one")
	}
	for _, client := range []byte{1, 2} {
		held(start.Add(time.Second), 2)
		gone := asking(dhcpv6.MessageTypeRelease, client, public6.Addr)
		gone.AddOption(dhcpv6.OptServerID(duid(9)))
		if r := tell6(t, s, start.Add(time.Second), gone); r == nil || r.Options.Status().StatusCode != iana.StatusSuccess {
			t.Errorf("a release is answered with %v", r)
		}
	}
	if l := s.Leases(start.Add(time.Second)); len(l) != 0 {
		t.Errorf("after its release the address is given to %v", l)
	}
}

func TestAnAddressThatTheServerHasNoMoreIsOverAtOnce(t *testing.T) {
	s := server6(t, public6)
	old := addr("2001:db8:1::7")
	renew := asking(dhcpv6.MessageTypeRenew, 1, old)
	renew.AddOption(dhcpv6.OptServerID(duid(9)))
	for _, m := range []*dhcpv6.Message{renew, asking(dhcpv6.MessageTypeRebind, 1, old)} {
		r := tell6(t, s, start, m)
		only(t, r, dhcpv6.MessageTypeReply)
		if _, over := given(r); len(over) != 1 || over[0] != old {
			t.Errorf("%v are over, not %v", over, old)
		}
	}
	for has, want := range map[netip.Addr]iana.StatusCode{old: iana.StatusNotOnLink, public6.Addr: iana.StatusSuccess} {
		if r := tell6(t, s, start, asking(dhcpv6.MessageTypeConfirm, 1, has)); r == nil || r.Options.Status().StatusCode != want {
			t.Errorf("who has %v is told %v", has, r)
		}
	}
	prefix := asking(dhcpv6.MessageTypeSolicit, 1)
	prefix.AddOption(&dhcpv6.OptIAPD{IaId: [4]byte{7}})
	if r := tell6(t, s, start, prefix); r.Options.OneIAPD().Options.Status().StatusCode != iana.StatusNoPrefixAvail {
		t.Errorf("who asks for a network is told %v", r)
	}
}

func TestWhatIsNotForThisServerIsNotAnswered(t *testing.T) {
	s := server6(t, public6)
	to := func(m *dhcpv6.Message, server byte) *dhcpv6.Message {
		m.AddOption(dhcpv6.OptServerID(duid(server)))
		return m
	}
	nameless := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeSolicit}
	for what, m := range map[string]*dhcpv6.Message{
		"another server's":        to(asking(dhcpv6.MessageTypeRequest, 1), 8),
		"a request to nobody":     asking(dhcpv6.MessageTypeRequest, 1),
		"a search with an answer": to(asking(dhcpv6.MessageTypeSolicit, 1), 9),
		"nobody's":                nameless,
		"a server's":              to(asking(dhcpv6.MessageTypeAdvertise, 1), 9),
		"a question about one":    asking(dhcpv6.MessageTypeInformationRequest, 1),
	} {
		if r := tell6(t, s, start, m); r != nil {
			t.Errorf("%s is answered: %v", what, r)
		}
	}
	about := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeInformationRequest}
	if r := tell6(t, s, start, about); r == nil || len(r.Options.DNS()) != 1 {
		t.Errorf("who asks for name servers alone is told %v", r)
	}
	if len(s.Leases(start)) != 0 {
		t.Error("the address is given")
	}
}

func TestARouterSaysWhatItIsAndThatItIsOver(t *testing.T) {
	s := server6(t, public6)
	for over, lifetime := range map[bool]time.Duration{false: RouterLifetime, true: 0} {
		b, err := ndp.MarshalMessage(s.Advertisement(over))
		if err != nil {
			t.Fatal(err)
		}
		m, err := ndp.ParseMessage(b)
		if err != nil {
			t.Fatal(err)
		}
		want := &ndp.RouterAdvertisement{CurrentHopLimit: 64, ManagedConfiguration: true, RouterLifetime: lifetime, Options: []ndp.Option{
			&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: hardware(9)}, &ndp.MTU{MTU: 1420},
			&ndp.RecursiveDNSServer{Lifetime: lifetime, Servers: []netip.Addr{addr("2001:db8::53")}},
		}}
		if d := cmp.Diff(ndp.Message(want), m, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("over %v: %s", over, d)
		}
	}
}

func FuzzHandle6(f *testing.F) {
	s := server6(f, public6)
	for _, m := range []*dhcpv6.Message{
		asking(dhcpv6.MessageTypeSolicit, 1), asking(dhcpv6.MessageTypeRebind, 1, addr("2001:db8::7")), asking(dhcpv6.MessageTypeConfirm, 1, addr("::1")),
		{MessageType: dhcpv6.MessageTypeInformationRequest},
	} {
		f.Add(m.ToBytes())
	}
	request := asking(dhcpv6.MessageTypeRequest, 2)
	request.AddOption(dhcpv6.OptServerID(duid(9)))
	request.AddOption(&dhcpv6.OptIAPD{})
	f.Add(request.ToBytes())
	f.Add([]byte{1, 2, 3, 4, 0, 1, 0, 2, 0, 1}) // an identifier without an end
	f.Fuzz(func(t *testing.T, b []byte) {
		answer := s.Handle(start, b)
		if answer == nil {
			return
		}
		r, err := dhcpv6.MessageFromBytes(answer)
		if err != nil || r.Options.ServerID() == nil {
			t.Fatalf("%x is answered with %x (%v)", b, answer, err)
		}
		got, _ := given(r)
		for _, a := range got {
			if a != public6.Addr {
				t.Fatalf("%x is given %v", b, a)
			}
		}
	})
}
