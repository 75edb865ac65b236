package cli

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"weft"

	"weft/golden"
)

func TestAnExplanationReadsAsAPersonWouldSayIt(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	hard := weft.NAT{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation, Hairpin: weft.Unsupported}
	cone := weft.NAT{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.PreservingAllocation, Hairpin: weft.Supported}
	row := weft.NAT{Mapping: weft.AddressDependentMapping, Filtering: weft.AddressDependentFiltering, Allocation: weft.SequentialAllocation, Step: 1}
	side := func(name string, n weft.NAT) weft.ExplainedSide {
		return weft.ExplainedSide{Name: name, NAT: n, Words: n.Words()}
	}
	direct := netip.MustParseAddrPort("203.0.113.7:41641").String()
	var got bytes.Buffer
	for _, e := range []weft.Explanation{
		{
			Peer: "bob", Online: true, Path: weft.PathRelay, Method: weft.RelayUDP, Endpoint: "home", Since: ago(3 * time.Minute),
			Reason: "the first way to answer", RTTms: 41.5, Self: side("ann", hard), Other: side("bob", hard),
			Ways: []weft.WayStatus{
				{Way: "relay-udp home", State: "valid", InUse: true, RTTms: 41.5, LastSeen: ago(time.Second)},
				{Way: "direct " + direct, Kind: "srflx", State: "untested", Tries: 12},
			},
			Attempts: []weft.WayAttempt{
				{Way: "plain", At: ago(3 * time.Minute), TookMS: 5000, Packets: 24, Result: "nothing came back"},
				{Way: "predict", At: ago(2 * time.Minute), TookMS: 9100, Packets: 640, Running: true, Result: "round 3 of 8"},
			},
			NextAttempt: now.Add(10 * time.Minute),
			Blocked:     "both NATs give every destination another port, at random.",
			Advice:      []string{"open a UDP port.", "enable UPnP."},
		},
		{
			Peer: "bob", Online: true, Path: weft.PathDirect, Method: weft.Direct, Endpoint: direct, Since: ago(2 * time.Hour),
			Reason: "a direct path answers", RTTms: 8.25, Loss: 0.015, MTU: 1328, DirectAfterMS: 2300, OwnSocket: 40001,
			Self: side("ann", cone), Other: side("bob", hard),
			Ways: []weft.WayStatus{
				{Way: "direct " + direct, Kind: "prflx", State: "valid", InUse: true, RTTms: 8.25, Loss: 0.015, MTU: 1328, LastSeen: ago(0)},
				{Way: "relay-udp home", State: "failed", Why: "nothing came back", LastSeen: ago(time.Minute)},
			},
			Attempts: []weft.WayAttempt{{Way: "spray", Role: "opener", At: ago(2 * time.Hour), TookMS: 2100, Packets: 260, Result: "a probe came through"}},
		},
		{
			Peer: "bob", Online: true, Path: weft.PathDirect, Method: weft.Direct, Endpoint: direct, Link: "eth1", Since: ago(time.Minute), RTTms: 8,
			Self: weft.ExplainedSide{Name: "ann", NAT: cone, Words: cone.Words(), Links: []weft.ExplainedLink{
				{Link: 2, Interface: "eth1", NAT: cone, Words: cone.Words()}, {Link: 1, Interface: "eth0", NAT: hard, Words: hard.Words()},
			}},
			Other: weft.ExplainedSide{Name: "bob", NAT: row, Words: row.Words(), Links: []weft.ExplainedLink{
				{Link: 1, NAT: row, Words: row.Words()}, {Link: 3, Words: weft.NAT{}.Words()},
			}},
		},
		{
			Peer: "cid", Path: weft.PathNone, Self: side("ann", row), Other: side("cid", weft.NAT{}),
			Blocked: "the peer is offline.",
		},
	} {
		if err := printExplanation(&got, e, now); err != nil {
			t.Fatal(err)
		}
		got.WriteString("\n----\n")
	}
	golden.Text(t, "explain.txt", got.String())
}

func TestAccessReadsAsAPersonWouldSayIt(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ann, bob := netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("100.64.0.3")
	ssh := weft.Rule{From: []weft.Source{"user:ann", "tag:ops"}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 22, Last: 22}}, Why: "acls[2], line 14"}
	lan := weft.Rule{From: []weft.Source{"*"}, To: []netip.Prefix{netip.MustParsePrefix("192.168.142.0/24")}}
	var got bytes.Buffer
	for _, doc := range []weft.Access{
		{From: "ann", FromAddr: ann, To: "bob", ToAddr: bob, What: "tcp:22", Allowed: true, Rules: []weft.Rule{ssh}, Reason: "a rule allows it"},
		{From: "ann", FromAddr: ann, To: "bob", ToAddr: netip.MustParseAddr("192.168.142.7"), Allowed: true, Rules: []weft.Rule{lan}, Reason: "a rule allows it",
			Refused: weft.Refusal{Packets: 3}},
		{From: "ann", FromAddr: ann, To: "bob", ToAddr: bob, What: "udp:53", Reason: "no rule allows it, and what no rule allows is dropped",
			Refused: weft.Refusal{Packets: 12, Last: "udp:53", At: now.Add(-4 * time.Second)}},
		{From: "ann", FromAddr: ann, To: "bob", ToAddr: netip.MustParseAddr("192.168.142.7"), What: "tcp:80", DecidedBy: "bob", Reason: "bob decides what is let in there",
			Carrier: weft.Carrier{Route: lan.To[0], By: "bob", Approved: true, InUse: true, Beside: []string{"cid (silent)"}, Note: "it is offline"}},
		{From: "ann", FromAddr: ann, To: "bob", ToAddr: netip.MustParseAddr("9.9.9.9"), DecidedBy: "bob", Reason: "bob decides what is let in there",
			Carrier: weft.Carrier{Route: weft.ExitRoutes[0], By: "bob", Approved: true, Note: "this machine uses no exit node: say `weft set exit-node=bob`"}},
		{From: "ann", FromAddr: ann, To: "ann", ToAddr: netip.MustParseAddr("10.9.9.9"), Reason: "nobody has approved it: say `weft admin route approve ann 10.0.0.0/8` on the server",
			Carrier: weft.Carrier{Route: netip.MustParsePrefix("10.0.0.0/8"), By: "ann"}},
	} {
		if err := printAccess(&got, doc, now); err != nil {
			t.Fatal(err)
		}
		got.WriteString("---\n")
	}
	golden.Text(t, "access.txt", got.String())
}
