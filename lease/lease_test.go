package lease

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"pgregory.net/rapid"
)

var (
	start   = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	public  = Config{Server: addr("203.0.113.1"), Net: netip.MustParsePrefix("203.0.113.7/24"), Single: addr("203.0.113.7"), Gateway: addr("203.0.113.1"), Resolvers: []netip.Addr{addr("192.0.2.53")}, MTU: 1420}
	private = Config{Server: addr("192.168.77.1"), Net: netip.MustParsePrefix("192.168.77.1/29"), Gateway: addr("192.168.77.1")}
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func server(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hardware(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }

// say hands a message in and parses what is answered; nil: nothing is.
func say(t testing.TB, s *Server, now time.Time, client byte, kind dhcpv4.MessageType, changes ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, netip.AddrPort) {
	t.Helper()
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(hardware(client)), dhcpv4.WithMessageType(kind)}, changes...)...)
	if err != nil {
		t.Fatal(err)
	}
	b, to := s.Handle(now, m.ToBytes())
	if b == nil {
		return nil, to
	}
	r, err := dhcpv4.FromBytes(b)
	if err != nil {
		t.Fatalf("the answer cannot be read: %v", err)
	}
	if r.TransactionID != m.TransactionID || r.ClientHWAddr.String() != m.ClientHWAddr.String() {
		t.Fatalf("%v is no answer to %v", r, m)
	}
	return r, to
}

func requesting(a netip.Addr) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ipOf(a)))
}

// get takes a client through the whole exchange.
func get(t testing.TB, s *Server, now time.Time, client byte) (netip.Addr, *dhcpv4.DHCPv4) {
	t.Helper()
	offer, _ := say(t, s, now, client, dhcpv4.MessageTypeDiscover)
	if offer == nil {
		return netip.Addr{}, nil
	}
	if offer.MessageType() != dhcpv4.MessageTypeOffer {
		t.Fatalf("a client that looks for a server hears %v", offer)
	}
	ack, to := say(t, s, now, client, dhcpv4.MessageTypeRequest, requesting(addrOf(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	if ack == nil || ack.MessageType() != dhcpv4.MessageTypeAck || !ack.YourIPAddr.Equal(offer.YourIPAddr) {
		t.Fatalf("a client that takes what it was offered hears %v", ack)
	}
	if to != netip.MustParseAddrPort("255.255.255.255:68") {
		t.Fatalf("a client without an address is answered at %v", to)
	}
	return addrOf(ack.YourIPAddr), ack
}

func TestTheClientIsGivenThePublicAddressAndWhatBelongsToIt(t *testing.T) {
	s := server(t, public)
	a, ack := get(t, s, start, 1)
	if a != public.Single || !ack.Router()[0].Equal(ipOf(public.Gateway)) || net.IP(ack.SubnetMask()).String() != "255.255.255.0" ||
		!ack.DNS()[0].Equal(ipOf(public.Resolvers[0])) || ack.IPAddressLeaseTime(0) != Term || ack.ClasslessStaticRoute() != nil {
		t.Errorf("it is told %v", ack.Summary())
	}
	if l := s.Leases(start); len(l) != 1 || l[0].Addr != a || l[0].Client != hardware(1).String() {
		t.Errorf("leases are %+v", l)
	}
	if l := s.Leases(start.Add(Term)); len(l) != 0 {
		t.Errorf("a lease that has ended is still one: %+v", l)
	}
	renewed, to := say(t, s, start.Add(Term/2), 1, dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(ipOf(a)))
	if renewed == nil || renewed.MessageType() != dhcpv4.MessageTypeAck || to != netip.AddrPortFrom(a, 68) {
		t.Errorf("a client that asks to go on hears %v at %v", renewed, to)
	}
	if a, _ := get(t, s, start.Add(Term/2), 2); a != public.Single {
		t.Errorf("a machine in the place of the first has %v", a)
	}
	if l := s.Leases(start.Add(Term / 2)); len(l) != 1 || l[0].Client != hardware(2).String() {
		t.Errorf("leases are %+v", l)
	}
}

func TestAGatewayOutsideTheNetworkIsToldToBeOnTheLink(t *testing.T) {
	cfg := public
	cfg.Net, cfg.Gateway = netip.MustParsePrefix("203.0.113.7/32"), addr("172.31.1.1")
	cfg.Server = cfg.Gateway
	_, ack := get(t, server(t, cfg), start, 1)
	routes := ack.ClasslessStaticRoute()
	if len(routes) != 2 || routes[0].Dest.String() != "172.31.1.1/32" || !routes[0].Router.Equal(net.IPv4zero) ||
		routes[1].Dest.String() != "0.0.0.0/0" || !routes[1].Router.Equal(ipOf(cfg.Gateway)) {
		t.Errorf("routes are %v", routes)
	}
}

func TestAClientThatRemembersAnotherNetworkIsToldNo(t *testing.T) {
	for _, cfg := range []Config{public, private} {
		r, to := say(t, server(t, cfg), start, 1, dhcpv4.MessageTypeRequest, requesting(addr("10.9.8.7")))
		if r == nil || r.MessageType() != dhcpv4.MessageTypeNak || to.Addr() != addr("255.255.255.255") {
			t.Errorf("it hears %v at %v", r, to)
		}
	}
}

func TestAfterANewStartAClientGoesOnWithItsAddress(t *testing.T) {
	was, _ := get(t, server(t, private), start, 1)
	s := server(t, private)
	r, _ := say(t, s, start, 1, dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(ipOf(was)))
	if r == nil || r.MessageType() != dhcpv4.MessageTypeAck || addrOf(r.YourIPAddr) != was {
		t.Errorf("it hears %v", r)
	}
}

func TestWhatAnotherServerWasChosenForIsNotAnswered(t *testing.T) {
	s := server(t, private)
	if r, _ := say(t, s, start, 1, dhcpv4.MessageTypeRequest, requesting(addr("192.168.77.3")),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(192, 168, 77, 6)))); r != nil {
		t.Errorf("it hears %v", r)
	}
	if r, _ := say(t, s, start, 1, dhcpv4.MessageTypeDiscover, dhcpv4.WithRelay(net.IPv4(10, 0, 0, 1))); r != nil {
		t.Errorf("by a relay agent it hears %v", r)
	}
}

// Whatever clients do, no two have one address at a time, and none has one that is not to be given.
func TestNoTwoClientsHaveOneAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(private)
		if err != nil {
			t.Fatal(err)
		}
		now := start
		type held struct {
			client byte
			until  time.Time
		}
		has := map[netip.Addr]held{}
		hear := func(client byte, kind dhcpv4.MessageType, a netip.Addr) *dhcpv4.DHCPv4 {
			changes := []dhcpv4.Modifier{dhcpv4.WithHwAddr(hardware(client)), dhcpv4.WithMessageType(kind)}
			if a.IsValid() && kind == dhcpv4.MessageTypeRelease {
				changes = append(changes, dhcpv4.WithClientIP(ipOf(a)))
			} else if a.IsValid() {
				changes = append(changes, requesting(a))
			}
			m, err := dhcpv4.New(changes...)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := s.Handle(now, m.ToBytes())
			if b == nil {
				return nil
			}
			r, err := dhcpv4.FromBytes(b)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			client := rapid.ByteRange(1, 8).Draw(t, "client")
			a := netip.AddrFrom4([4]byte{192, 168, 77, rapid.ByteRange(0, 9).Draw(t, "address")})
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				hear(client, dhcpv4.MessageTypeDiscover, a)
			case 1:
				r := hear(client, dhcpv4.MessageTypeRequest, a)
				if r == nil || r.MessageType() != dhcpv4.MessageTypeAck {
					continue
				}
				if got := addrOf(r.YourIPAddr); got != a || !private.Net.Contains(got) || got == private.Gateway || got.As4()[3] == 0 || got.As4()[3] == 7 {
					t.Fatalf("client %d is given %v", client, got)
				}
				if h, ok := has[a]; ok && h.client != client && now.Before(h.until) {
					t.Fatalf("client %d is given %v, which client %d has until %v", client, a, h.client, h.until)
				}
				has[a] = held{client, now.Add(Term)}
			case 2:
				hear(client, dhcpv4.MessageTypeRelease, a)
				if has[a].client == client {
					delete(has, a)
				}
			case 3:
				hear(client, dhcpv4.MessageTypeDecline, a)
				if has[a].client == client {
					delete(has, a)
				}
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "seconds")) * time.Second)
			}
		}
	})
}

func TestWhenAllAreGivenAwayTheOneThatEndedFirstIsNext(t *testing.T) {
	s := server(t, private)
	var given []netip.Addr
	for n := range byte(5) { // a /29 has six, of which one is the server's
		a, _ := get(t, s, start.Add(time.Duration(n)*time.Second), n+1)
		given = append(given, a)
	}
	if a, _ := get(t, s, start.Add(time.Minute), 9); a.IsValid() {
		t.Fatalf("a sixth client has %v, while %v are taken", a, given)
	}
	if a, _ := get(t, s, start.Add(Term+2500*time.Millisecond), 9); a != given[0] {
		t.Errorf("a sixth client has %v, not %v, which ended first", a, given[0])
	}
}

func TestANameIsFitForATerminal(t *testing.T) {
	for in, want := range map[string]string{"desk": "desk", "\x1b[31mred\x07": "31mred", "bü ro.lan": "bro.lan", fmt.Sprintf("%0100d", 1): fmt.Sprintf("%0100d", 0)[:63]} {
		if got := cleanName(in); got != want {
			t.Errorf("%q becomes %q, not %q", in, got, want)
		}
	}
}

func FuzzHandle(f *testing.F) {
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform, dhcpv4.MessageTypeDecline} {
		m, err := dhcpv4.New(dhcpv4.WithHwAddr(hardware(1)), dhcpv4.WithMessageType(kind), requesting(addr("192.168.77.3")), dhcpv4.WithOption(dhcpv4.OptHostName("desk")))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(m.ToBytes())
		f.Add(m.ToBytes()[:200])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, cfg := range []Config{public, private} {
			s := server(t, cfg)
			answer, to := s.Handle(start, b)
			if answer == nil {
				continue
			}
			r, err := dhcpv4.FromBytes(answer)
			if err != nil {
				t.Fatalf("the answer cannot be read: %v", err)
			}
			if a := to.Addr(); to.Port() != 68 || a != addr("255.255.255.255") && a != cfg.Single && !s.gives(a) {
				t.Fatalf("it is sent to %v", to)
			}
			if a := addrOf(r.YourIPAddr); a.IsValid() && a != cfg.Single && !s.gives(a) {
				t.Fatalf("it gives %v", a)
			}
		}
	})
}
