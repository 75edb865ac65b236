package host

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft"
)

var (
	portal4, portal6 = netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")
	portalRanges     = prefixes("100.64.0.0/10", "fd7a::/48")
)

// strictly has every interface of a namespace, those to come too, drop what comes by another way than answers would go.
func strictly(t *testing.T) {
	t.Helper()
	paths, _ := filepath.Glob("/proc/sys/net/ipv4/conf/*/rp_filter")
	for _, f := range append(paths, "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding") {
		value := "1"
		if !strings.HasSuffix(f, "rp_filter") {
			value = "0"
		}
		if err := os.WriteFile(f, []byte(value), 0); err != nil {
			t.Skipf("needs a namespace whose settings can be set: %v", err)
		}
	}
}

func defaultBy(t *testing.T, link netlink.Link) {
	t.Helper()
	for _, p := range prefixes("0.0.0.0/0", "::/0") {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: netOf(p)}); err != nil {
			t.Fatal(err)
		}
	}
}

// localFirst tells whether the local table is asked first, as it is on a machine that is no portal.
func localFirst(t *testing.T) bool {
	t.Helper()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := netlink.RuleList(family)
		if err != nil {
			t.Fatal(err)
		}
		if n := slices.IndexFunc(rules, func(r netlink.Rule) bool { return r.Table == unix.RT_TABLE_LOCAL }); n < 0 {
			t.Fatal("this machine does not know its own addresses any more")
		} else if n != 0 || rules[0].Priority != 0 {
			return false
		}
	}
	return true
}

// passes is how long a packet that should arrive is waited for.
const passes = 5 * time.Second

// sum4 writes the internet checksum of b (RFC 1071) to an offset of it.
func sum4(b []byte, at int) {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[at:], ^uint16(sum+sum>>16))
}

// answers tells whether an answer to an echo comes out of a TUN.
func answers(t *testing.T, f *os.File) bool {
	t.Helper()
	b := make([]byte, 2048)
	for deadline := time.Now().Add(passes); time.Now().Before(deadline); {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 20); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if n, err := unix.Read(int(f.Fd()), b); err == nil && n >= 28 && b[0] == 0x45 && b[9] == unix.IPPROTO_ICMP && b[20] == 0 {
			return true
		}
	}
	return false
}

// state is all that a portal could leave behind.
func state(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, _ := netlink.RuleList(family)
		for _, r := range rules {
			out.WriteString(r.String() + "\n")
		}
		routes, _ := netlink.RouteListFiltered(family, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			out.WriteString(r.String() + "\n")
		}
		addrs, _ := netlink.AddrList(nil, family)
		for _, a := range addrs {
			out.WriteString(a.IPNet.String() + " " + a.Label + "\n")
		}
	}
	settings, _ := filepath.Glob("/proc/sys/net/ipv4/conf/*/*_*")
	more, _ := filepath.Glob("/proc/sys/net/ipv4/ip_*")
	for _, f := range append(append(settings, more...), "/proc/sys/net/ipv6/conf/all/forwarding") {
		b, _ := os.ReadFile(f)
		out.WriteString(f + " " + string(b))
	}
	return out.String()
}

func TestARemotePortalHandsItsAddressOnAndKeepsWhatIsItsOwn(t *testing.T) {
	inNetworkNamespace(t)
	strictly(t)
	_, overlay := openTUNPair(t, "weft0")
	link, world := openTUNPair(t, "eth0")
	otherLink, other := openTUNPair(t, "other0")
	plainLink(t, link, "203.0.113.10/24", "2001:db8::10/64")
	plainLink(t, otherLink, "192.168.9.1/24", "2001:db8:9::1/64")
	defaultBy(t, link)
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), portalRanges, 1400); err != nil {
		t.Fatal(err)
	}
	before := state(t)
	p := PortalRemote{TUN: "weft0", Interface: "eth0", Addrs: []netip.Addr{portal4, portal6}, Overlay: portalRanges, StateDir: t.TempDir(),
		Keep: []weft.PortRange{{Proto: weft.ProtoTCP, First: 22, Last: 22}, {Proto: weft.ProtoUDP, First: 41641, Last: 41700}, {Proto: weft.ProtoICMP, Last: 65535}}}
	if err := OpenPortalRemote(p); err != nil {
		t.Fatal(err)
	}
	mark := byte(0)
	whole := []crossing{
		{"a stranger to the client", world, overlay, "198.51.100.9", "203.0.113.10", true},
		{"a stranger to the client", world, overlay, "2001:db8:77::9", "2001:db8::10", true},
		{"the client to a stranger", overlay, world, "203.0.113.10", "198.51.100.8", true},
		{"the client to a stranger", overlay, world, "2001:db8::10", "2001:db8:77::8", true},
	}
	never := []crossing{
		{"a stranger through the machine", world, other, "198.51.100.9", "192.168.9.9", false},
		{"a stranger into the overlay", world, overlay, "198.51.100.9", "100.64.0.5", false},
		{"a stranger into the overlay", world, overlay, "2001:db8:77::9", "fd7a::5", false},
		{"a stranger under a peer's name", world, overlay, "100.64.0.5", "203.0.113.10", false},
		{"another network to the overlay", other, overlay, "192.168.9.9", "100.64.0.5", false},
		{"another network to the world", other, world, "192.168.9.9", "198.51.100.9", false},
		{"another peer through the machine", overlay, world, "100.64.0.5", "198.51.100.9", false},
		{"another peer through the machine", overlay, world, "fd7a::5", "2001:db8:77::9", false},
		{"the client to a cloud's secrets", overlay, world, "203.0.113.10", "169.254.169.254", false},
		{"the client to another network of the machine's", overlay, other, "203.0.113.10", "192.168.9.9", false},
	}
	crossings(t, "open", &mark, append(whole, never...))
	got, err := PortalTrafficOf("weft0")
	if err != nil || got.ToClient.Packets < 2 || got.FromClient.Packets < 2 || got.Refused.Packets == 0 || got.ToClient.Bytes == 0 {
		t.Errorf("it counts %+v (%v)", got, err)
	}

	// Once more, as after a change of addresses, and by somebody who knows nothing of the first.
	p.Addrs = p.Addrs[:1]
	if err := OpenPortalRemote(p); err != nil {
		t.Fatal(err)
	}
	crossings(t, "again, IPv4 only", &mark, []crossing{whole[0], whole[2], {"the client in IPv6", overlay, world, "2001:db8::10", "2001:db8:77::8", false}})
	if localFirst(t) {
		t.Error("the address is not handed on: the local table comes first")
	}
	if err := ClosePortal("weft0", p.StateDir); err != nil {
		t.Fatal(err)
	}
	if after := state(t); after != before {
		t.Errorf("a portal that was closed leaves\n%s\nwhere there was\n%s", after, before)
	}
	if !localFirst(t) {
		t.Error("the local table is not first any more")
	}
	crossings(t, "closed", &mark, []crossing{{"a stranger to the client", world, overlay, "198.51.100.9", "203.0.113.10", false}})
}

func TestTwoPortalsOfOneMachineDoNotTakeEachOthersPlace(t *testing.T) {
	inNetworkNamespace(t)
	strictly(t)
	link, world := openTUNPair(t, "eth0")
	plainLink(t, link, "203.0.113.10/24", "203.0.113.11/24")
	defaultBy(t, link)
	mark := byte(0)
	overlays := map[string]*os.File{}
	var list []crossing
	portals := []PortalRemote{
		{TUN: "weft0", Interface: "eth0", Addrs: []netip.Addr{portal4}, StateDir: t.TempDir()},
		{TUN: "weft1", Interface: "eth0", Addrs: []netip.Addr{portal4.Next()}, StateDir: t.TempDir()},
	}
	for _, p := range portals {
		_, overlays[p.TUN] = openTUNPair(t, p.TUN)
		if err := ConfigureLink(p.TUN, prefixes("100.64.0.7/32"), nil, 1400); err != nil {
			t.Fatal(err)
		}
		if err := OpenPortalRemote(p); err != nil {
			t.Fatal(err)
		}
		list = append(list,
			crossing{"a stranger to the client of " + p.TUN, world, overlays[p.TUN], "198.51.100.9", p.Addrs[0].String(), true},
			crossing{"the client of " + p.TUN + " to a stranger", overlays[p.TUN], world, p.Addrs[0].String(), "198.51.100.8", true})
	}
	crossings(t, "both", &mark, list)
	if err := ClosePortal("weft0", portals[0].StateDir); err != nil {
		t.Fatal(err)
	}
	list[0].passes, list[1].passes = false, false
	crossings(t, "the second alone", &mark, list)
	if err := ClosePortal("weft1", portals[1].StateDir); err != nil {
		t.Fatal(err)
	}
	if !localFirst(t) {
		t.Error("the local table is not first any more")
	}
}

func TestALocalPortalServesItsClientAndNobodyElse(t *testing.T) {
	inNetworkNamespace(t)
	strictly(t)
	_, overlay := openTUNPair(t, "weft0")
	wanLink, wan := openTUNPair(t, "wan0")
	lanLink, lan := openTUNPair(t, "lan0")
	plainLink(t, wanLink, "192.168.1.2/24", "2001:db8:1::2/64")
	plainLink(t, lanLink)
	defaultBy(t, wanLink)
	if err := ConfigureLink("weft0", prefixes("100.64.0.8/32", "fd7a::8/128"), portalRanges, 1400); err != nil {
		t.Fatal(err)
	}
	before := state(t)
	p := PortalLocal{TUN: "weft0", Lan: "lan0", Addrs: []netip.Addr{portal4, portal6}, Gateway: netip.MustParseAddr("203.0.113.1"),
		Net: netip.MustParsePrefix("203.0.113.0/24"), Uplinks: []string{"wan0"}, Overlay: portalRanges, StateDir: t.TempDir()}
	if err := OpenPortalLocal(p); err != nil {
		t.Fatal(err)
	}
	mark := byte(0)
	crossings(t, "open", &mark, []crossing{
		{"the client to the world", lan, overlay, "203.0.113.10", "198.51.100.9", true},
		{"the client to the world", lan, overlay, "2001:db8::10", "2001:db8:77::9", true},
		{"the world to the client", overlay, lan, "198.51.100.9", "203.0.113.10", true},
		{"the world to the client", overlay, lan, "2001:db8:77::9", "2001:db8::10", true},
		{"the client to where the uplink is", lan, overlay, "203.0.113.10", "192.168.1.1", true},
		{"the client past the portal", lan, wan, "203.0.113.10", "198.51.100.9", false},
		{"the client under another name", lan, overlay, "203.0.113.77", "198.51.100.9", false},
		{"the client under a private name", lan, wan, "192.168.7.7", "198.51.100.9", false},
		{"the client to a peer", lan, overlay, "203.0.113.10", "100.64.0.5", false},
		{"the client to a peer", lan, overlay, "2001:db8::10", "fd7a::5", false},
		{"the uplink's neighbour to the client", wan, lan, "192.168.1.77", "203.0.113.10", false},
		{"the uplink's neighbour to the client", wan, lan, "2001:db8:1::77", "2001:db8::10", false},
		{"the uplink's neighbour to a peer", wan, overlay, "192.168.1.77", "100.64.0.5", false},
		{"a peer to the uplink", overlay, wan, "100.64.0.5", "198.51.100.9", false},
		{"the world to the uplink", overlay, wan, "198.51.100.9", "192.168.1.77", false},
	})
	if err := ClosePortal("weft0", p.StateDir); err != nil {
		t.Fatal(err)
	}
	if after := state(t); after != before {
		t.Errorf("a portal that was closed leaves\n%s\nwhere there was\n%s", after, before)
	}
}

func TestManyClientsOfALocalPortalShareItsAddress(t *testing.T) {
	inNetworkNamespace(t)
	strictly(t)
	_, overlay := openTUNPair(t, "weft0")
	wanLink, wan := openTUNPair(t, "wan0")
	lanLink, lan := openTUNPair(t, "lan0")
	plainLink(t, wanLink, "192.168.1.2/24")
	plainLink(t, lanLink)
	defaultBy(t, wanLink)
	if err := ConfigureLink("weft0", prefixes("100.64.0.8/32"), portalRanges[:1], 1400); err != nil {
		t.Fatal(err)
	}
	before := state(t)
	p := PortalLocal{TUN: "weft0", Lan: "lan0", Addrs: []netip.Addr{portal4}, Share: netip.MustParsePrefix("192.168.77.1/24"),
		Overlay: portalRanges, StateDir: t.TempDir()}
	if err := OpenPortalLocal(p); err != nil {
		t.Fatal(err)
	}
	mark := byte(0)
	for _, client := range []string{"192.168.77.5", "192.168.77.6"} {
		mark++
		to := netip.MustParseAddr("198.51.100." + client[len(client)-1:])
		if _, err := lan.Write(markedPacket(netip.MustParseAddr(client), to, mark)); err != nil {
			t.Fatal(err)
		}
		b := received(t, overlay, mark, passes)
		if b == nil || netip.AddrFrom4([4]byte(b[12:16])) != portal4 {
			t.Fatalf("%s is not seen as %v in %x", client, portal4, b)
		}
		mark++
		if _, err := overlay.Write(markedPacket(to, portal4, mark)); err != nil {
			t.Fatal(err)
		}
		if b := received(t, lan, mark, passes); b == nil || netip.AddrFrom4([4]byte(b[16:20])) != netip.MustParseAddr(client) {
			t.Fatalf("the answer to %s is %x", client, b)
		}
	}
	crossings(t, "shared", &mark, []crossing{
		{"the world to a client", overlay, lan, "198.51.100.77", "192.168.77.5", false},
		{"the world past the portal", overlay, wan, "198.51.100.77", "203.0.113.10", false},
		{"a client past the portal", lan, wan, "192.168.77.5", "198.51.100.9", false},
		{"a client to a peer", lan, overlay, "192.168.77.5", "100.64.0.5", false},
		{"the uplink's neighbour to a client", wan, lan, "192.168.1.77", "192.168.77.5", false},
	})
	if err := ClosePortal("weft0", p.StateDir); err != nil {
		t.Fatal(err)
	}
	if after := state(t); after != before {
		t.Errorf("a portal that was closed leaves\n%s\nwhere there was\n%s", after, before)
	}
}

func TestWhatAKilledPortalLeavesLeadsNowhereAndIsTakenAway(t *testing.T) {
	inNetworkNamespace(t)
	strictly(t)
	dir := t.TempDir()
	link, world := openTUNPair(t, "eth0")
	plainLink(t, link, "203.0.113.10/24")
	defaultBy(t, link)
	before := state(t)
	f, err := openTUN(tunDevice, "weft0")
	if err != nil {
		t.Fatal(err)
	}
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32"), nil, 1400); err != nil {
		t.Fatal(err)
	}
	if err := OpenPortalRemote(PortalRemote{TUN: "weft0", Interface: "eth0", Addrs: []netip.Addr{portal4}, StateDir: dir}); err != nil {
		t.Fatal(err)
	}
	f.Close() // with the process
	// The address is the machine's own again, at once: it answers an echo.
	echo := []byte{0: 0x45, 3: 28, 8: 64, 9: 1, 20: 8, 26: 0, 27: 9}
	copy(echo[12:], netip.MustParseAddr("198.51.100.9").AsSlice())
	copy(echo[16:], portal4.AsSlice())
	sum4(echo[:20], 10)
	sum4(echo[20:], 2)
	if _, err := world.Write(echo); err != nil {
		t.Fatal(err)
	}
	if !answers(t, world) {
		t.Error("the address does not answer after the portal was killed")
	}
	if err := ClosePortal("weft0", dir); err != nil {
		t.Fatal(err)
	}
	if after := state(t); after != before {
		t.Errorf("a portal that was killed and taken back leaves\n%s\nwhere there was\n%s", after, before)
	}
	if err := ClosePortal("weft0", dir); err != nil {
		t.Errorf("taken back twice: %v", err)
	}
}
