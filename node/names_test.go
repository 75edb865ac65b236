package node

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"weft"
)

// asked asks a server for a name's address; "" is no answer, a refusal or another result is given as such.
func asked(at netip.Addr, name string) string {
	c := miekg.Client{Timeout: 500 * time.Millisecond}
	r, _, err := c.Exchange(new(miekg.Msg).SetQuestion(name, miekg.TypeA), netip.AddrPortFrom(at, 53).String())
	switch {
	case err != nil:
		return ""
	case len(r.Answer) == 1:
		return r.Answer[0].(*miekg.A).A.String()
	}
	return miekg.RcodeToString[r.Rcode]
}

func TestAnExitNodeAnswersMembersForAsLongAsItIsOne(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for port 53")
	}
	n := newNames(meshConfig{Device: &device{}, Settings: Settings{NoDNS: true}, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(n.close)
	m := weft.NetworkMap{
		Self:   weft.Node{ID: 1, Name: "exit", Addrs: []netip.Addr{netip.MustParseAddr("127.86.0.2")}},
		Domain: "home.internal", Ranges: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Service: netip.MustParseAddr("127.86.0.1"),
		DNS: weft.DNS{Records: []weft.DNSRecord{{Name: "printer", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}}},
	}
	eventually := func(what string, at netip.Addr, name, want string) {
		t.Helper()
		var got string
		for range 40 {
			if got = asked(at, name); got == want {
				return
			}
			<-time.After(100 * time.Millisecond)
		}
		_, problem := n.how()
		t.Errorf("%s: %s is %q, want %q (%s)", what, name, got, want, problem)
	}
	n.set(m)
	n.start(m)
	eventually("on this machine", m.Service, "printer.home.internal.", "192.0.2.9")
	if got := asked(m.Self.Addrs[0], "printer.home.internal."); got != "" {
		t.Errorf("a node that is no exit answers others: %s", got)
	}
	m.Self.Routes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	n.set(m)
	eventually("an exit node", m.Self.Addrs[0], "exit.home.internal.", "127.86.0.2")
	// What is set from now on is known there, too.
	m.DNS.Records = append(slices.Clone(m.DNS.Records), weft.DNSRecord{Name: "late", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}})
	m.DNS.Split = map[string][]netip.AddrPort{"ads.example": {}}
	n.set(m)
	eventually("an exit node", m.Self.Addrs[0], "late.home.internal.", "192.0.2.10")
	eventually("an exit node", m.Self.Addrs[0], "x.ads.example.", "NXDOMAIN")
	m.Self.Routes = nil
	n.set(m)
	eventually("a former exit node", m.Self.Addrs[0], "late.home.internal.", "")
	if got := asked(m.Service, "late.home.internal."); got != "192.0.2.10" {
		t.Errorf("and this machine is told %q", got)
	}
	if _, problem := n.how(); problem != "" {
		t.Error(problem)
	}
}

func TestWhatTheAdministratorSaysIsAskedInPlaceOfWhomTheMachineAsks(t *testing.T) {
	n := newNames(meshConfig{Device: &device{}, Logger: slog.New(slog.DiscardHandler)})
	given := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}
	m := weft.NetworkMap{Domain: weft.Domain, Service: netip.MustParseAddr("100.64.0.1"), DNS: weft.DNS{Upstreams: given}}
	n.set(m)
	if got := n.upstreams("example.com."); !slices.Equal(got, given) || !n.plan.All {
		t.Errorf("asked are %v, everything comes to us: %v", got, n.plan.All)
	}
	// Others of this machine answer for their own, and nobody forwards to them what is not.
	other := netip.MustParseAddr("10.99.0.1")
	n.others.Store(&others{at: time.Now().Add(time.Hour), servers: []netip.Addr{other}})
	m.DNS = weft.DNS{Search: []string{"corp.example"}}
	n.set(m)
	if got := n.upstreams("example.com."); slices.ContainsFunc(got, func(a netip.AddrPort) bool { return a.Addr() == other }) || n.plan.All {
		t.Errorf("asked are %v, everything comes to us: %v", got, n.plan.All)
	}
	if !slices.Equal(n.plan.Search, []string{weft.Domain, "corp.example"}) {
		t.Errorf("short names are tried in %v", n.plan.Search)
	}
}
