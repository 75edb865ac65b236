package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/bond"
	"weft/engine"
	"weft/engine/underlay"
	"weft/path"
)

var (
	byEth0  = weft.DirectVia(1, netip.MustParseAddrPort("192.0.2.7:41641"))
	byWwan0 = weft.DirectVia(2, netip.MustParseAddrPort("192.0.2.7:41641"))
	byHome  = weft.Via{Method: weft.RelayUDP, Relay: 1}
)

// twoLinked is a mesh with two links, as far as it is asked what they are called.
func twoLinked() *mesh {
	return &mesh{
		links: links{apart: true, list: []*meshLink{
			{Link: underlay.Link{ID: 1, Device: "eth0"}}, {Link: underlay.Link{ID: 2, Device: "wwan0"}},
		}},
		relays: map[weft.RelayID]*relayLink{1: {link: 2, relay: weft.Relay{Name: "home"}}},
	}
}

func TestAPathIsToldAsItIsKnownByProbesAndByTheBond(t *testing.T) {
	me, now := twoLinked(), time.Now()
	pair := path.PairStatus{Via: byWwan0, Kind: weft.ServerReflexive, State: path.Valid, RTT: 30 * time.Millisecond, MTU: 1392, LastSeen: now, Metric: 20}
	got := me.pathStatus(now, pair, false)
	want := weft.PathStatus{
		Link: "wwan0", Remote: "192.0.2.7:41641", Method: weft.Direct, Kind: "srflx", State: weft.PathReady, Metric: 20, RTTms: 30, MTU: 1392, LastSeen: now,
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if got := me.pathStatus(now, pair, true); got.State != weft.PathInUse {
		t.Errorf("the one in use is %s", got.State)
	}
	failed := pair
	failed.State, failed.Why = path.Failed, "no answer"
	if got := me.pathStatus(now, failed, false); got.State != weft.PathFailed || got.Reason != "no answer" {
		t.Errorf("one that failed is %+v", got)
	}
	relayed := me.pathStatus(now, path.PairStatus{Via: byHome, State: path.Valid}, false)
	if relayed.Link != "wwan0" || relayed.Remote != "home" || relayed.Kind != "" {
		t.Errorf("a relay that is bound by wwan0 is %+v", relayed)
	}

	// What the bond knows is of now; what it does not know stays.
	way := engine.BondWayStatus{Via: byWwan0, PathStatus: bond.PathStatus{
		State: bond.Silent, Reason: "nothing came", Metric: 30, RTT: 50 * time.Millisecond, MinRTT: 20 * time.Millisecond, Rate: 1e6, Loss: 0.1,
		InFlight: 1, Window: 2, LostPackets: 3, AgainPackets: 4, Share: 0.5,
	}}
	bonded(&got, way, path.Valid)
	if got.State != weft.PathSilent || got.Reason != "nothing came" || got.RTTms != 50 || got.Loss != 0.1 || got.Metric != 30 || got.Load.Share != 0.5 ||
		got.Bonded != (weft.BondedPath{Rate: 8e6, MinRTTms: 20, InFlight: 1, Window: 2, Lost: 3, Again: 4}) {
		t.Errorf("bonded it is %+v", got)
	}
	way.RTT = 0
	fresh := me.pathStatus(now, pair, false)
	if bonded(&fresh, way, path.Valid); fresh.RTTms != 30 {
		t.Errorf("what probes measured is gone: %v ms", fresh.RTTms)
	}
	given := me.pathStatus(now, failed, false)
	if bonded(&given, way, path.Failed); given.State != weft.PathFailed || given.Reason != "no answer" {
		t.Errorf("what the agent has given up is told to be %s: %s", given.State, given.Reason)
	}
}

// The states that people read are the bond's words.
func TestEveryStateOfABondHasItsName(t *testing.T) {
	for s, want := range map[bond.State]weft.PathState{
		bond.Active: weft.PathActive, bond.Standby: weft.PathStandby, bond.Silent: weft.PathSilent, bond.Returning: weft.PathReturning,
	} {
		if got := weft.PathState(s.String()); got != want {
			t.Errorf("%v is %q, not %q", s, got, want)
		}
	}
	if m := engine.BondMode(3); slices.Contains(BondModes, m.String()) {
		t.Errorf("%v is a mode", m)
	}
	for _, m := range []engine.BondMode{engine.BondOff, engine.BondAggregate, engine.BondRedundant} {
		if !slices.Contains(BondModes, m.String()) {
			t.Errorf("%v cannot be set", m)
		}
	}
}

func TestWhatBecameOfPathsIsToldInOneOrder(t *testing.T) {
	me, began := twoLinked(), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	s := path.Snapshot{
		Changes: []path.Change{
			{At: at(0), Via: byEth0, To: path.Valid, Reason: "it answers"},
			{At: at(7), Via: byWwan0, From: path.Failed, To: path.Failed, Gone: true, Reason: "it went with its link"},
		},
		Switches:      []path.Switch{{At: at(1), To: byEth0, Reason: "first"}, {At: at(9), From: byEth0, Reason: "none is left"}},
		MemberChanges: []path.MemberChange{{At: at(2), Via: byWwan0, In: true, Reason: "it works"}, {At: at(5), Via: byWwan0, Reason: "silent"}},
	}
	b := engine.BondStatus{Events: []engine.BondEvent{{At: at(4), Via: byWwan0, From: bond.Active, To: bond.Silent, Reason: "overdue"}}}
	want := []weft.PathEvent{
		{At: at(0), Path: "direct 192.0.2.7:41641 by eth0", From: weft.PathUntested, To: weft.PathReady, Reason: "it answers"},
		{At: at(1), Path: "direct 192.0.2.7:41641 by eth0", From: weft.PathReady, To: weft.PathInUse, Reason: "first"},
		{At: at(2), Path: "direct 192.0.2.7:41641 by wwan0", From: weft.PathReady, To: weft.PathBonded, Reason: "it works"},
		{At: at(4), Path: "direct 192.0.2.7:41641 by wwan0", From: weft.PathActive, To: weft.PathSilent, Reason: "overdue"},
		{At: at(5), Path: "direct 192.0.2.7:41641 by wwan0", From: weft.PathBonded, To: weft.PathReady, Reason: "silent"},
		{At: at(7), Path: "direct 192.0.2.7:41641 by wwan0", From: weft.PathFailed, To: weft.PathGone, Reason: "it went with its link"},
	}
	if diff := cmp.Diff(want, me.pathEvents(s, b)); diff != "" {
		t.Error(diff)
	}
}

func TestSharesAreOfWhatIsSentNow(t *testing.T) {
	list := []weft.PathStatus{{Load: weft.PathLoad{TxRate: 3e6}}, {Load: weft.PathLoad{TxRate: 1e6, RxRate: 9e6}}, {}}
	share(list)
	for i, want := range []float64{0.75, 0.25, 0} {
		if list[i].Load.Share != want {
			t.Errorf("path %d has %v", i, list[i].Load.Share)
		}
	}
	none := []weft.PathStatus{{}}
	if share(none); none[0].Load.Share != 0 {
		t.Errorf("of nothing it is %v", none[0].Load.Share)
	}
}

func TestAPeersBondIsWhatIsSetForItElseForAll(t *testing.T) {
	s := Settings{Bond: "redundant", BondPeers: map[string]string{"bob": "off", "cid": "aggregate"}}
	for peer, want := range map[string]string{"bob": "off", "cid": "aggregate", "dan": "redundant", "": "redundant"} {
		if got := s.BondFor(peer); got != want {
			t.Errorf("with %q it is %s", peer, got)
		}
	}
	if s := (Settings{}); s.BondFor("bob") != "aggregate" || s.CongestionOr() != "bbr" {
		t.Errorf("by itself it is %s with %s", s.BondFor("bob"), s.CongestionOr())
	}
	// Saying what is so anyway changes nothing.
	if !(Settings{}).Equal(Settings{Bond: "aggregate", Congestion: "bbr", BondPeers: map[string]string{}, Redundant: []engine.BondRule{}}) {
		t.Error("the defaults, said, are others")
	}
	for _, o := range []Settings{
		{Bond: "off"}, {Congestion: "reno"}, {BondPeers: map[string]string{"bob": "aggregate"}}, {Redundant: []engine.BondRule{{DSCP: 46}}},
	} {
		if (Settings{}).Equal(o) || !(Settings{}).sameNetwork(o) {
			t.Errorf("%+v is nothing new, or needs a new start", o)
		}
	}
}

func TestWhatCannotBeSetOfBondingIsRefused(t *testing.T) {
	many := make([]engine.BondRule, MaxBondRules+1)
	for _, s := range []Settings{
		{Bond: "on"}, {Congestion: "vegas"}, {BondPeers: map[string]string{"bob": ""}}, {BondPeers: map[string]string{"bob": "on"}},
		{BondPeers: map[string]string{"": "off"}}, {BondPeers: map[string]string{"Bob": "off"}}, {BondPeers: map[string]string{"a b": "off"}}, {Redundant: many},
	} {
		if err := s.checkBond(); err == nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if err := (Settings{Bond: "off", Congestion: "cubic", BondPeers: map[string]string{"bob": "redundant"}, Redundant: many[1:]}).checkBond(); err != nil {
		t.Error(err)
	}
}
