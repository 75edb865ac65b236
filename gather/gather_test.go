package gather

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/host"
	"weft/stun"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

var compareAddrs = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func TestOnlyAddressesThatAPeerCouldUseAreHostCandidates(t *testing.T) {
	p := netip.MustParsePrefix
	ifaces := []host.Interface{
		{Name: "lo", Up: true, Loopback: true, Addrs: []netip.Prefix{p("127.0.0.1/8")}},
		{Name: "eth0", Up: true, Addrs: []netip.Prefix{p("192.168.1.7/24"), p("169.254.3.4/16"), p("2001:db8::7/64"), p("fe80::1/64")}},
		{Name: "eth1", Up: false, Addrs: []netip.Prefix{p("10.0.0.1/8")}},
		{Name: "wg0", Up: true, PointToPoint: true, MTU: 1420, Addrs: []netip.Prefix{p("10.99.0.1/24")}},
		{Name: "ppp0", Up: true, PointToPoint: true, MTU: 1492, Addrs: []netip.Prefix{p("203.0.113.9/32")}},
		{Name: "weft0", Up: true, Addrs: []netip.Prefix{p("100.64.0.2/32")}},
		{Name: "other", Up: true, Addrs: []netip.Prefix{p("100.70.1.1/32"), p("10.1.1.1/8")}},
	}
	got := Hosts(ifaces, 41641, 1468, []netip.Prefix{p("100.64.0.0/10")}, "weft0")
	want := []weft.Candidate{
		{Addr: ap("[2001:db8::7]:41641"), Kind: weft.Host},
		{Addr: ap("10.1.1.1:41641"), Kind: weft.Host},
		{Addr: ap("192.168.1.7:41641"), Kind: weft.Host},
		{Addr: ap("203.0.113.9:41641"), Kind: weft.Host},
	}
	if d := cmp.Diff(want, got, compareAddrs); d != "" {
		t.Error(d)
	}
}

func TestAnAddressThatIsFoundTwiceKeepsItsBestKind(t *testing.T) {
	a, b := ap("203.0.113.7:1"), ap("203.0.113.8:1")
	got := Merge(2,
		[]weft.Candidate{{Addr: a, Kind: weft.ServerReflexive}},
		[]weft.Candidate{{Addr: a, Kind: weft.Host}, {Addr: b, Kind: weft.Static}, {Addr: ap("203.0.113.9:1"), Kind: weft.Host}})
	want := []weft.Candidate{{Addr: a, Kind: weft.Host}, {Addr: b, Kind: weft.Static}}
	if d := cmp.Diff(want, got, compareAddrs); d != "" {
		t.Error(d)
	}
}

// A fakeServer answers as a STUN server that sees the node at an address.
func fakeServer(t *testing.T, packet []byte, server, sees netip.AddrPort) []byte {
	t.Helper()
	var r stun.Responder
	reply, ok := r.Respond(nil, packet, sees, server)
	if !ok {
		t.Fatal("the responder does not answer the question")
	}
	return reply.Packet
}

func TestAServersAnswerBecomesACandidateAndItsSilenceTakesItAway(t *testing.T) {
	now := time.Unix(1e9, 0)
	server, mapped, moved := ap("198.51.100.1:3478"), ap("203.0.113.7:40000"), ap("203.0.113.7:40001")
	var r Reflexive
	r.SetServers(now, []netip.AddrPort{server})
	var asked []byte
	poll := func() (next time.Time, changed bool) {
		return r.Poll(now, func(to netip.AddrPort, b []byte) {
			if to != server {
				t.Errorf("asked %s", to)
			}
			asked = append([]byte(nil), b...)
		})
	}
	poll()
	if asked == nil {
		t.Fatal("nothing was asked at once")
	}
	if mine, changed := r.Handle(now, fakeServer(t, asked, server, mapped), server); !mine || !changed {
		t.Fatalf("the answer was taken: %v, changed something: %v", mine, changed)
	}
	if d := cmp.Diff([]weft.Candidate{{Addr: mapped, Kind: weft.ServerReflexive}}, r.Candidates(), compareAddrs); d != "" {
		t.Error(d)
	}

	// The mapping moves.
	next, _ := poll()
	now, asked = next, nil
	poll()
	if asked == nil {
		t.Fatal("the server was not asked again when it was due")
	}
	if _, changed := r.Handle(now, fakeServer(t, asked, server, moved), server); !changed {
		t.Error("another mapping is no change")
	}
	if got := r.Candidates(); len(got) != 1 || got[0].Addr != moved {
		t.Errorf("candidates are %v", got)
	}

	// The server falls silent.
	for range 20 {
		next, changed := poll()
		if changed {
			if got := r.Candidates(); len(got) != 0 {
				t.Errorf("a silent server still vouches for %v", got)
			}
			return
		}
		now = next
	}
	t.Error("a server that is silent is never given up")
}

func TestAnAnswerFromSomebodyElseIsNotTaken(t *testing.T) {
	now := time.Unix(1e9, 0)
	server := ap("198.51.100.1:3478")
	var r Reflexive
	r.SetServers(now, []netip.AddrPort{server})
	var asked []byte
	r.Poll(now, func(_ netip.AddrPort, b []byte) { asked = append([]byte(nil), b...) })
	if mine, _ := r.Handle(now, fakeServer(t, asked, server, ap("203.0.113.66:6")), ap("198.51.100.66:3478")); mine {
		t.Error("an answer was taken from an address that was not asked")
	}
}
