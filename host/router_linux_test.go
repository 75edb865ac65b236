package host

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// A crossing is a packet from one interface to another, and whether it should arrive.
type crossing struct {
	what     string
	in, out  *os.File
	from, to string
	passes   bool
}

// crossings sends packets, each with a mark of its own, and looks which arrive.
func crossings(t *testing.T, when string, mark *byte, list []crossing) {
	t.Helper()
	for _, c := range list {
		*mark++
		if _, err := c.in.Write(markedPacket(netip.MustParseAddr(c.from), netip.MustParseAddr(c.to), *mark)); err != nil {
			t.Fatal(err)
		}
		patience := 60 * time.Millisecond
		if c.passes {
			patience = 5 * time.Second
		}
		if got := arrives(t, c.out, *mark, patience); got != c.passes {
			t.Errorf("%s: %s (%s to %s) passed: %v, want %v", when, c.what, c.from, c.to, got, c.passes)
		}
	}
}

// plainLink gives a TUN of a test addresses and routes without weft's marks: an interface that is somebody else's.
func plainLink(t *testing.T, link netlink.Link, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		p := netip.MustParsePrefix(a)
		addr := &netlink.Addr{IPNet: netOf(p)}
		if p.Addr().Is6() {
			addr.Flags = 2 // IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

func sysctl(t *testing.T, key string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/" + key)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestARouterPassesOnWhatIsForItsNetworksAndNothingElse(t *testing.T) {
	inNetworkNamespace(t)
	ranges := prefixes("100.64.0.0/10", "fd7a::/48")
	_, overlay := openTUNPair(t, "weft0")
	lanLink, lan := openTUNPair(t, "lan0")
	otherLink, other := openTUNPair(t, "other0")
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), ranges, 1400); err != nil {
		t.Fatal(err)
	}
	plainLink(t, lanLink, "192.168.142.1/24", "2001:db8:142::1/64")
	plainLink(t, otherLink, "192.168.9.1/24", "2001:db8:9::1/64")
	for _, f := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+f, []byte("0"), 0); err != nil {
			t.Skipf("needs a namespace whose forwarding can be set: %v", err)
		}
	}
	hears := func(when, want string) {
		t.Helper()
		if got := sysctl(t, "net/ipv6/conf/lan0/accept_ra") + sysctl(t, "net/ipv6/conf/other0/accept_ra"); got != want {
			t.Errorf("%s lan0 and other0 hear router advertisements by accept_ra=%s, want %s", when, got, want)
		}
	}
	for name, value := range map[string]string{"lan0": "1", "other0": "0"} {
		if err := set(setting{settingPath("net/ipv6/conf", name, "accept_ra"), value}); err != nil {
			t.Fatal(err)
		}
	}
	router := Router{Interface: "weft0", Networks: prefixes("192.168.142.0/24", "2001:db8:142::/64"), Overlay: ranges}
	if err := SetRouter(router); err != nil {
		t.Fatal(err)
	}
	hears("while it forwards", "20")
	mark := byte(0)
	to4 := crossing{"a peer to the network", overlay, lan, "100.64.0.5", "192.168.142.9", true}
	to6 := crossing{"a peer to the network", overlay, lan, "fd7a::5", "2001:db8:142::9", true}
	back4 := crossing{"its answer", lan, overlay, "192.168.142.9", "100.64.0.5", true}
	back6 := crossing{"its answer", lan, overlay, "2001:db8:142::9", "fd7a::5", true}
	begin4 := crossing{"the network to another peer", lan, overlay, "192.168.142.9", "100.64.0.6", false}
	begin6 := crossing{"the network to another peer", lan, overlay, "2001:db8:142::9", "fd7a::6", false}
	never := []crossing{
		{"a peer to a network that is not advertised", overlay, other, "100.64.0.5", "192.168.9.9", false},
		{"a peer to a network that is not advertised", overlay, other, "fd7a::5", "2001:db8:9::9", false},
		{"another network to a peer", other, overlay, "192.168.9.9", "100.64.0.6", false},
		{"another network to a peer", other, overlay, "2001:db8:9::9", "fd7a::6", false},
		{"a peer's name from the network", lan, overlay, "100.64.0.5", "100.64.0.6", false},
		{"network to network, which was not passed on before", lan, other, "192.168.142.9", "192.168.9.9", false},
		{"network to network, which was not passed on before", lan, other, "2001:db8:142::9", "2001:db8:9::9", false},
		{"peer to peer through the router", overlay, overlay, "100.64.0.5", "100.64.0.6", false},
	}
	crossings(t, "answers only", &mark, append([]crossing{begin4, begin6, to4, back4, to6, back6}, never...))

	router.Enter = true
	if err := SetRouter(router); err != nil {
		t.Fatal(err)
	}
	begin4.passes, begin6.passes = true, true
	crossings(t, "the network may enter", &mark, append([]crossing{to4, back4, to6, back6, begin4, begin6}, never...))

	router.Networks = prefixes("0.0.0.0/0", "::/0")
	if err := SetRouter(router); err != nil {
		t.Fatal(err)
	}
	to4.passes = false // private: not the internet's
	crossings(t, "an exit", &mark, append([]crossing{to4, to6}, never[2:4]...))

	router.Networks = prefixes("2001:db8:142::/64")
	if err := SetRouter(router); err != nil {
		t.Fatal(err)
	}
	hears("after three changes", "20")
	if got := sysctl(t, "net/ipv4/ip_forward") + sysctl(t, "net/ipv6/conf/all/forwarding"); got != "01" {
		t.Errorf("forwarding of IPv4 and IPv6 is %s with a network of IPv6 alone, want 01", got)
	}
	if err := StopRouter("weft0"); err != nil {
		t.Fatal(err)
	}
	if got := sysctl(t, "net/ipv4/ip_forward") + sysctl(t, "net/ipv6/conf/all/forwarding"); got != "00" {
		t.Errorf("forwarding of IPv4 and IPv6 is %s after the router stopped, want what was before: 00", got)
	}
	hears("after the router stopped", "10")
	to6.passes, begin4.passes = false, false
	crossings(t, "stopped", &mark, []crossing{to4, to6, begin4})
}

func TestARouterLeavesForwardingOnThatWasOn(t *testing.T) {
	inNetworkNamespace(t)
	_, overlay := openTUNPair(t, "weft0")
	lanLink, lan := openTUNPair(t, "lan0")
	otherLink, other := openTUNPair(t, "other0")
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32"), prefixes("100.64.0.0/10"), 1400); err != nil {
		t.Fatal(err)
	}
	plainLink(t, lanLink, "192.168.142.1/24")
	plainLink(t, otherLink, "192.168.9.1/24")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Skipf("needs a namespace whose forwarding can be set: %v", err)
	}
	if err := SetRouter(Router{Interface: "weft0", Networks: prefixes("192.168.142.0/24")}); err != nil {
		t.Fatal(err)
	}
	mark := byte(100)
	list := []crossing{
		{"network to network, as before", lan, other, "192.168.142.9", "192.168.9.9", true},
		{"a peer to the network", overlay, lan, "100.64.0.5", "192.168.142.9", true},
		{"a peer elsewhere", overlay, other, "100.64.0.5", "192.168.9.9", false},
	}
	crossings(t, "on", &mark, list)
	if err := StopRouter("weft0"); err != nil {
		t.Fatal(err)
	}
	if got := sysctl(t, "net/ipv4/ip_forward"); got != "1" {
		t.Errorf("forwarding is %s after the router stopped, want it left on", got)
	}
}

func TestMasqueradedPacketsLeaveUnderTheRoutersAddress(t *testing.T) {
	inNetworkNamespace(t)
	_, overlay := openTUNPair(t, "weft0")
	lanLink, lan := openTUNPair(t, "lan0")
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32"), prefixes("100.64.0.0/10"), 1400); err != nil {
		t.Fatal(err)
	}
	plainLink(t, lanLink, "192.168.142.1/24")
	if err := SetRouter(Router{Interface: "weft0", Networks: prefixes("192.168.142.0/24"), Masquerade: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := overlay.Write(markedPacket(netip.MustParseAddr("100.64.0.5"), netip.MustParseAddr("192.168.142.9"), 7)); err != nil {
		t.Fatal(err)
	}
	b := received(t, lan, 7, 5*time.Second)
	if b == nil {
		t.Fatal("nothing arrived")
	}
	if from := netip.AddrFrom4([4]byte(b[12:16])); from != netip.MustParseAddr("192.168.142.1") {
		t.Errorf("it leaves as %s, want the router's address", from)
	}
}
