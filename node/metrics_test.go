package node

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
)

// counted are the metrics of a node whose every metric says something.
func counted() weft.Metrics {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	path := weft.PathStatus{
		Link: "eth0", Local: netip.MustParseAddrPort("192.168.1.2:41641"), Remote: "203.0.113.7:41641", Method: weft.Direct, Kind: "srflx",
		State: weft.PathActive, RTTms: 21.5, Loss: 0.25, Metric: 10,
		Load:   weft.PathLoad{Share: 0.75, TxBytes: 4000, RxBytes: 3000, TxPackets: 4, RxPackets: 3},
		Bonded: weft.BondedPath{Rate: 8e6, InFlight: 2840, Window: 14200, Lost: 2, Again: 1},
	}
	twin, silent, relay := path, path, path
	twin.Local = netip.MustParseAddrPort("192.168.1.2:50000") // of a socket of its own
	silent.Link, silent.State = "wwan0", weft.PathSilent
	relay.Method, relay.Remote, relay.State, relay.Bonded = weft.RelayUDP, "home", weft.PathReady, weft.BondedPath{}
	s := metricSet{}
	s.general(weft.Status{
		Version: "1.2.3", State: weft.Running, Server: weft.ServerStatus{Connected: true}, Problems: []string{"p"},
		Self:  weft.SelfStatus{Refused: map[string]uint64{"no_rule": 5, "fragment": 0}, Relays: []weft.RelayStatus{{Name: "home", UDP: true, RTTms: 12}, {Name: "far", Stream: true}}},
		Peers: []weft.PeerStatus{{Name: "bob", Path: weft.PathDirect}, {Name: "cid", Path: weft.PathNone}},
	})
	s.drops(map[string]uint64{"no_route": 3, "congested": 4})
	s.add("weft_peers_left_out", 0)
	s.peer(weft.PeerStatus{Name: "bob", Online: true, LastHandshake: now, Refused: weft.Refusal{Packets: 5}}, weft.Paths{
		Bond: weft.BondStatus{On: true, QueuePackets: 2, QueueBytes: 2840,
			Received: weft.BondReceived{Delivered: 9, Held: 3, Reordered: 1, Late: 2, Duplicates: 4, GapsPassed: 5, GapsTimedOut: 6}},
		Paths: []weft.PathStatus{path, twin, silent, relay},
	})
	s.peer(weft.PeerStatus{Name: "cid"}, weft.Paths{})
	return s.document()
}

func TestEveryMetricIsNamedAsPrometheusWantsItAndDocumented(t *testing.T) {
	docs, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^weft_[a-z_]+[a-z]$`)
	told := map[string]bool{}
	for _, f := range counted().Families {
		told[f.Name] = true
		if !name.MatchString(f.Name) || strings.HasSuffix(f.Name, "_total") != (f.Type == counter) || f.Type != counter && f.Type != gauge {
			t.Errorf("%s is a %s", f.Name, f.Type)
		}
		seen := map[string]bool{}
		for _, s := range f.Samples {
			labels := slices.Sorted(maps.Keys(s.Labels))
			key := fmt.Sprint(s.Labels)
			if seen[key] {
				t.Errorf("%s has two samples of %v", f.Name, s.Labels)
			}
			seen[key] = true
			if want := slices.Sorted(maps.Keys(f.Samples[0].Labels)); !slices.Equal(labels, want) {
				t.Errorf("%s has labels %v and %v", f.Name, labels, want)
			}
			if slices.Contains(labels, "") {
				t.Errorf("%s has a label without a name", f.Name)
			}
		}
	}
	for _, f := range metricFamilies {
		if !told[f.Name] {
			t.Errorf("%s is never told", f.Name)
		}
		if !strings.Contains(string(docs), "`"+f.Name+"`") {
			t.Errorf("docs/metrics.md does not have %s", f.Name)
		}
		if !strings.HasSuffix(f.Help, ".") {
			t.Errorf("what %s tells is no sentence: %q", f.Name, f.Help)
		}
	}
	for _, mentioned := range regexp.MustCompile("`(weft_[a-z_]+)`").FindAllStringSubmatch(string(docs), -1) {
		if !told[mentioned[1]] {
			t.Errorf("docs/metrics.md has %s, which there is not", mentioned[1])
		}
	}
}

func TestMetricsSayWhatStatusAndPathsSay(t *testing.T) {
	values := map[string]float64{}
	for _, f := range counted().Families {
		for _, s := range f.Samples {
			values[fmt.Sprint(f.Name, s.Labels)] = s.Value
		}
	}
	const eth0, wwan0 = " link:eth0 method:direct peer:bob remote:203.0.113.7:41641]", " link:wwan0 method:direct peer:bob remote:203.0.113.7:41641]"
	for key, want := range map[string]float64{
		"weft_build_infomap[version:1.2.3]":                                               1,
		"weft_peersmap[path:direct]":                                                      1,
		"weft_peersmap[path:relay]":                                                       0,
		"weft_relay_connectedmap[relay:far transport:stream]":                             1,
		"weft_relay_connectedmap[relay:far transport:udp]":                                0,
		"weft_relay_rtt_secondsmap[relay:home]":                                           0.012,
		"weft_dropped_packets_totalmap[reason:congested]":                                 4,
		"weft_refused_packets_totalmap[reason:no_rule]":                                   5,
		"weft_peer_refused_packets_totalmap[peer:bob]":                                    5,
		"weft_peer_last_handshake_secondsmap[peer:bob]":                                   1772366400,
		"weft_bond_activemap[peer:cid]":                                                   0,
		"weft_bond_gaps_totalmap[peer:bob why:timeout]":                                   6,
		"weft_path_rtt_secondsmap[" + eth0[1:]:                                            0.0215,
		"weft_path_delivery_rate_bytesmap[" + eth0[1:]:                                    1e6,
		"weft_path_carriesmap[" + eth0[1:]:                                                1,
		"weft_path_carriesmap[" + wwan0[1:]:                                               0,
		"weft_path_worksmap[" + wwan0[1:]:                                                 0,
		"weft_path_worksmap[link:eth0 method:relay-udp peer:bob remote:home]":             1,
		"weft_path_infomap[kind:srflx" + strings.Replace(wwan0, "]", " state:silent]", 1): 1,
	} {
		if got, ok := values[key]; !ok || got != want {
			t.Errorf("%s is %v (%v), not %v", key, got, ok, want)
		}
	}
}

func TestMetricsAreBounded(t *testing.T) {
	var peers []weft.PeerStatus
	for i := range 3 * metricPeers {
		peers = append(peers, weft.PeerStatus{ID: weft.NodeID(i + 1), TxBytes: uint64(i%3) * 1000})
	}
	got := busiest(peers)
	if len(got) != metricPeers || slices.ContainsFunc(got, func(p weft.PeerStatus) bool { return p.TxBytes != 2000 }) ||
		!slices.IsSortedFunc(got, func(a, b weft.PeerStatus) int { return int(a.ID) - int(b.ID) }) {
		t.Errorf("of %d peers %d have metrics, and not the busiest", len(peers), len(got))
	}
	var paths []weft.PathStatus
	for i := range 4 * metricPaths {
		paths = append(paths, weft.PathStatus{Remote: fmt.Sprint(i), State: weft.PathFailed, Load: weft.PathLoad{TxBytes: uint64(i)}})
	}
	paths[0].State, paths[1].State = weft.PathActive, weft.PathInUse // they have only begun
	list := mostUsed(paths)
	if len(list) != metricPaths || !carries(list[0]) || !carries(list[1]) || list[2].Load.TxBytes != uint64(len(paths)-1) {
		t.Errorf("of %d paths %d have metrics: %+v", len(paths), len(list), list[:3])
	}
	if len(peers) != 3*metricPeers || peers[0].ID != 1 || paths[0].Remote != "0" {
		t.Error("what was given was changed")
	}
}
