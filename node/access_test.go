package node

import (
	"net/netip"
	"strings"
	"testing"

	"weft"
	"weft/engine"
	"weft/key"
)

// judging is a mesh with a map, whose engine has no socket that anybody knows.
func judging(t *testing.T, m weft.NetworkMap) *mesh {
	t.Helper()
	me := play(t).mesh
	me.netmap = m
	me.enforced = enforcement{}
	me.enforce()
	return me
}

func members() weft.NetworkMap {
	addrs := func(n byte) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 0, n}), netip.AddrFrom16([16]byte{0xfd, 15: n})}
	}
	return weft.NetworkMap{
		Domain: weft.Domain,
		Self:   weft.Node{ID: 1, Name: "web", User: "ann", Tags: []string{"tag:web"}, Addrs: addrs(1), Routes: []netip.Prefix{netip.MustParsePrefix("192.168.142.0/24")}},
		Peers: []weft.Node{
			{ID: 2, Name: "laptop", User: "ann", Addrs: addrs(2)},
			{ID: 3, Name: "phone", User: "ann", Addrs: addrs(3), Gateway: 1},
			{ID: 4, Name: "tablet", User: "ann", Addrs: addrs(4), Gateway: 2},
			{ID: 5, Name: "router", Addrs: addrs(5), Routes: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}},
		},
		Rules: []weft.Rule{
			{From: []weft.Source{"user:ann"}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 22, Last: 22}, {Proto: weft.ProtoICMP, Last: 65535}, {Proto: weft.ProtoICMPv6, Last: 65535}}, Why: "acls[0]"},
			{From: []weft.Source{"10.7.3.0/24"}, To: []netip.Prefix{netip.MustParsePrefix("192.168.142.0/24")}, Why: "acls[1]"},
		},
	}
}

func TestAccessIsWhatTheRulesSayOfWhoIsJudgedHere(t *testing.T) {
	me := judging(t, members())
	for _, c := range []struct {
		from, to, what string
		allowed        bool
		rules          string
	}{
		{"laptop", "web", "tcp:22", true, "acls[0]"},
		{"laptop.weft.internal", "WEB", "icmp", true, "acls[0]"},
		{"fd00::2", "web", "icmp", true, "acls[0]"},
		{"laptop", "web", "tcp:23", false, ""},
		{"laptop", "web", "", true, "acls[0]"},
		{"tablet", "100.64.0.1", "tcp:22", true, "acls[0]"},
		{"router", "web", "", false, ""},
		{"10.7.3.9", "192.168.142.7", "udp:53", true, "acls[1]"},
		{"10.7.4.9", "192.168.142.7", "udp:53", false, ""},
		{"laptop", "192.168.142.7", "", false, ""},
		{"laptop", "phone", "tcp:22", false, ""},
		{"web", "phone", "tcp:22", true, ""},
		{"web", "web", "tcp:22", true, ""},
		{"", "phone", "tcp:22", true, ""},
	} {
		var ports *weft.PortRange
		if c.what != "" {
			r, err := weft.ParsePortRange(c.what)
			if err != nil {
				t.Fatal(err)
			}
			ports = &r
		}
		doc, err := me.access(c.from, c.to, ports)
		if err != nil {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
			continue
		}
		var why []string
		for _, r := range doc.Rules {
			why = append(why, r.Why)
		}
		if doc.Allowed != c.allowed || strings.Join(why, " ") != c.rules || doc.Reason == "" {
			t.Errorf("%s to %s %s: %+v", c.from, c.to, c.what, doc)
		}
	}
	for _, c := range [][3]string{
		{"web", "laptop", "ask on laptop"}, {"web", "tablet", "ask on laptop"}, {"nobody", "web", `no "nobody"`}, {"laptop", "198.51.100.1", "no \"198"},
		{"100.64.0.2", "fd00::1", "no addresses of one family"},
	} {
		if _, err := me.access(c[0], c[1], nil); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s to %s: %v", c[0], c[1], err)
		}
	}
}

func TestOfAnAddressBehindAnotherItIsSaidWhoCarriesItAndWhetherItIsInUse(t *testing.T) {
	m := members()
	everything := netip.MustParsePrefix("0.0.0.0/0")
	m.Peers[3].Online = true
	m.Peers = append(m.Peers, weft.Node{ID: 6, Name: "gate", Online: true, Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.6")}, Routes: []netip.Prefix{everything}},
		weft.Node{ID: 7, Name: "second", Online: true, Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.7")}, Routes: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}},
		weft.Node{ID: 8, Name: "deep", Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.8")}, Routes: []netip.Prefix{netip.MustParsePrefix("10.7.9.0/24")}})
	for _, c := range []struct {
		what     string
		settings RouteSettings
		attached string
		to       string
		by       string
		approved bool
		inUse    bool
		words    string
	}{
		{"of two that carry a network", RouteSettings{}, "", "10.7.3.9", "router", true, true, "router decides"},
		{"of the narrowest network, offline", RouteSettings{}, "", "10.7.9.9", "deep", true, true, "it is offline"},
		{"routes are not accepted", RouteSettings{NoAcceptRoutes: true}, "", "10.7.3.9", "router", true, false, "accept-routes=on"},
		{"this machine is there itself", RouteSettings{}, "10.7.3.0/24", "10.7.3.9", "router", true, false, "this machine is in 10.7.3.0/24 itself"},
		{"an exit node that is not used", RouteSettings{}, "", "9.9.9.9", "gate", true, false, "exit-node=gate"},
		{"the exit node", RouteSettings{ExitNode: "gate"}, "", "9.9.9.9", "gate", true, true, "gate decides"},
		{"a private address by the exit node", RouteSettings{ExitNode: "gate"}, "", "172.16.1.1", "gate", true, true, "public addresses alone"},
		{"its own network", RouteSettings{}, "", "192.168.142.7", "web", true, true, "not kept from itself"},
		{"what it only offers", RouteSettings{AdvertiseRoutes: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}}, "", "172.16.1.1", "web", false, false, "route approve web 172.16.0.0/16"},
	} {
		me := judging(t, m)
		me.cfg.Settings.RouteSettings = c.settings
		me.carry()
		if me.routing.attached = nil; c.attached != "" {
			me.routing.attached = []netip.Prefix{netip.MustParsePrefix(c.attached)}
		}
		if c.what == "what it only offers" { // and nobody else has
			me.netmap.Peers = me.netmap.Peers[:3]
			me.carry()
		}
		doc, err := me.access("", c.to, nil)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if got := doc.Carrier; got.By != c.by || got.Approved != c.approved || got.InUse != c.inUse || !strings.Contains(doc.Reason+got.Note, c.words) {
			t.Errorf("%s: %+v", c.what, doc)
		}
		if beside := doc.Carrier.Beside; c.inUse && c.to == "10.7.3.9" && (len(beside) != 1 || beside[0] != "second") {
			t.Errorf("%s: beside it are %v", c.what, beside)
		}
		if decided := doc.DecidedBy == ""; decided != (c.by == "web") || doc.DecidedBy != "" && doc.Allowed {
			t.Errorf("%s: it is decided by %q: %v", c.what, doc.DecidedBy, doc.Allowed)
		}
	}
	me := judging(t, m)
	me.cfg.Settings.ExitNode = "gone"
	me.carry()
	if _, err := me.access("", "9.9.9.9", nil); err != nil {
		t.Errorf("the exit node that is set is gone, and gate would do: %v", err)
	}
	me.netmap.Peers = me.netmap.Peers[:3]
	me.carry()
	if _, err := me.access("", "9.9.9.9", nil); err == nil || !strings.Contains(err.Error(), "gone is not in the network") {
		t.Errorf("the exit node is gone: %v", err)
	}
}

func TestARefusalWithoutAPolicySaysSo(t *testing.T) {
	m := members()
	m.Rules, m.NoPolicy = []weft.Rule{}, true
	me := judging(t, m)
	if doc, err := me.access("laptop", "web", nil); err != nil || doc.Allowed || !strings.Contains(doc.Reason, weft.WithoutPolicy) {
		t.Errorf("%+v: %v", doc, err)
	}
}

func TestAMapWithoutRulesIsOfAServerThatKnowsNone(t *testing.T) {
	m := members()
	m.Rules = nil
	me := judging(t, m)
	if doc, err := me.access("router", "web", nil); err != nil || !doc.Allowed {
		t.Errorf("%+v: %v", doc, err)
	}
	m.Rules = []weft.Rule{}
	me.netmap = m
	me.enforce()
	if doc, err := me.access("router", "web", nil); err != nil || doc.Allowed || !strings.Contains(doc.Reason, "no rule lets anything in") {
		t.Errorf("%+v: %v", doc, err)
	}
}

func TestRulesAreMadeIntoTablesWhenSomethingAboutThemChanges(t *testing.T) {
	me := judging(t, members())
	was := me.enforced.policy
	same := func(what string, want bool) {
		t.Helper()
		me.enforce()
		if (me.enforced.policy == was) != want {
			t.Errorf("%s: the policy is the same: %v", what, !want)
		}
		was = me.enforced.policy
	}
	online := members()
	online.Peers[0].Online, online.Version = true, 7
	me.netmap = online
	same("a peer came online", true)
	tagged := members()
	tagged.Peers[0].Tags = []string{"tag:db"}
	me.netmap = tagged
	same("a peer was tagged", false)
	me.plain.static = map[key.NodePublic]engine.Peer{{}: {ID: ^weft.NodeID(0), Allowed: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}}}
	same("a peer was added by hand", false)
	same("nothing", true)
	me.cfg.Settings.SiteToSite = true
	same("the network behind may begin", false)
}
