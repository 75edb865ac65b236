package node

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"weft"
	"weft/engine"
)

// Counters and gauges for who watches many nodes: weft metrics prints them, docs/metrics.md lists them. They are in base
// units and under names as Prometheus wants them, and there are never more of them than the bounds below allow.

const (
	// metricPeers is how many peers have metrics of their own at most: those with most traffic. metricPaths bounds the paths of
	// each: as many as a bond has, and relays beside them.
	metricPeers = 500
	metricPaths = 32
	// metricsAtOnce is how many peers are looked at in one go, between which the mesh does what is due: some milliseconds.
	metricsAtOnce = 32
)

const counter, gauge = "counter", "gauge"

// metricFamilies are all there are, in the order in which they are told.
var metricFamilies = []weft.MetricFamily{
	{Name: "weft_build_info", Type: gauge, Help: "1; the version is in the label."},
	{Name: "weft_running", Type: gauge, Help: "1 while the network is up on this machine."},
	{Name: "weft_problems", Type: gauge, Help: "Sentences under problems in weft status."},
	{Name: "weft_server_connected", Type: gauge, Help: "1 while the coordinator is connected."},
	{Name: "weft_relay_connected", Type: gauge, Help: "1 while a relay is bound over udp, or its stream is up."},
	{Name: "weft_relay_rtt_seconds", Type: gauge, Help: "Round-trip time to a relay over UDP."},
	{Name: "weft_dropped_packets_total", Type: counter, Help: "Packets that went nowhere, by reason."},
	{Name: "weft_refused_packets_total", Type: counter, Help: "Packets that the policy did not let in, by reason."},
	{Name: "weft_peers", Type: gauge, Help: "Peers in the network, by how each is reached: direct, relay or none."},
	{Name: "weft_peers_left_out", Type: gauge, Help: "Peers without metrics of their own, since others have more traffic."},

	{Name: "weft_peer_online", Type: gauge, Help: "1 while the coordinator says that the peer is online."},
	{Name: "weft_peer_refused_packets_total", Type: counter, Help: "Packets of the peer that the policy did not let in."},
	{Name: "weft_peer_last_handshake_seconds", Type: gauge, Help: "Unix time of WireGuard's last handshake with the peer."},
	{Name: "weft_bond_active", Type: gauge, Help: "1 while data to the peer goes by several paths at once."},
	{Name: "weft_bond_queue_packets", Type: gauge, Help: "Packets that wait in front of all paths."},
	{Name: "weft_bond_queue_bytes", Type: gauge, Help: "Bytes that wait in front of all paths."},
	{Name: "weft_bond_received_packets_total", Type: counter, Help: "Packets that came by several paths and were delivered."},
	{Name: "weft_bond_held_packets_total", Type: counter, Help: "Of them, those that waited for an earlier one."},
	{Name: "weft_bond_reordered_packets_total", Type: counter, Help: "Of them, those that were delivered after a later one."},
	{Name: "weft_bond_late_packets_total", Type: counter, Help: "Of them, those that came when they were no longer waited for."},
	{Name: "weft_bond_duplicate_packets_total", Type: counter, Help: "Packets that had come before, by another path."},
	{Name: "weft_bond_gaps_total", Type: counter, Help: "Gaps that were no longer waited for: since all paths had passed them, or timed out."},

	{Name: "weft_path_info", Type: gauge, Help: "1; the state, as weft paths says it, and the kind of address are in the labels."},
	{Name: "weft_path_carries", Type: gauge, Help: "1 while the path carries data, alone or with others."},
	{Name: "weft_path_works", Type: gauge, Help: "1 while the path carries data or could; 0 while it is failed or silent."},
	{Name: "weft_path_metric", Type: gauge, Help: "Metric of the path: of its link, here and at the peer."},
	{Name: "weft_path_rtt_seconds", Type: gauge, Help: "Round-trip time, smoothed."},
	{Name: "weft_path_loss_ratio", Type: gauge, Help: "Data lost by the path lately, 0 to 1."},
	{Name: "weft_path_share_ratio", Type: gauge, Help: "Part of what is sent to the peer that goes by the path, 0 to 1."},
	{Name: "weft_path_delivery_rate_bytes", Type: gauge, Help: "Bytes a second that the path was seen to deliver lately, at most."},
	{Name: "weft_path_in_flight_bytes", Type: gauge, Help: "Bytes sent by the path and not reported yet."},
	{Name: "weft_path_window_bytes", Type: gauge, Help: "Bytes that may be in flight by the path."},
	{Name: "weft_path_transmit_bytes_total", Type: counter, Help: "Bytes sent by the path, without UDP and IP."},
	{Name: "weft_path_receive_bytes_total", Type: counter, Help: "Bytes that came by the path, without UDP and IP."},
	{Name: "weft_path_transmit_packets_total", Type: counter, Help: "Packets sent by the path."},
	{Name: "weft_path_receive_packets_total", Type: counter, Help: "Packets that came by the path."},
	{Name: "weft_path_lost_packets_total", Type: counter, Help: "Packets that were sent by the path and did not arrive."},
	{Name: "weft_path_again_packets_total", Type: counter, Help: "Packets sent by the path that others had lost."},
}

// A metricSet gathers samples.
type metricSet map[string][]weft.MetricSample

// add takes in a value, with pairs of a label and what it says.
func (s metricSet) add(name string, value float64, labels ...string) {
	m := make(map[string]string, len(labels)/2)
	for i := 0; i+1 < len(labels); i += 2 {
		m[labels[i]] = labels[i+1]
	}
	s[name] = append(s[name], weft.MetricSample{Labels: m, Value: value})
}

// document has the families that have samples.
func (s metricSet) document() weft.Metrics {
	doc := weft.Metrics{Schema: weft.SchemaVersion, Families: []weft.MetricFamily{}}
	for _, f := range metricFamilies {
		if f.Samples = s[f.Name]; f.Samples != nil {
			doc.Families = append(doc.Families, f)
		}
	}
	return doc
}

// Metrics returns all counters and gauges.
func (d *Daemon) Metrics(ctx context.Context) (weft.Metrics, error) {
	s := metricSet{}
	status, err := d.Status(ctx)
	if err != nil {
		return weft.Metrics{}, err
	}
	var me *mesh
	if err := d.do(ctx, func() error { me = d.mesh; return nil }); err != nil {
		return weft.Metrics{}, err
	}
	s.general(status)
	if me != nil {
		by, err := dropsByReason(me.engine.Drops())
		if err != nil {
			return weft.Metrics{}, err
		}
		s.drops(by)
		peers := busiest(status.Peers)
		s.add("weft_peers_left_out", float64(len(status.Peers)-len(peers)))
		for chunk := range slices.Chunk(peers, metricsAtOnce) {
			me.ask(ctx, func(now time.Time) {
				for _, x := range chunk {
					if p := me.peers[x.ID]; p != nil {
						s.peer(x, me.paths(now, p, false))
					}
				}
			})
		}
	}
	return s.document(), nil
}

// busiest are the peers that have metrics of their own, in the order of the map.
func busiest(all []weft.PeerStatus) []weft.PeerStatus {
	if len(all) <= metricPeers {
		return all
	}
	list := slices.Clone(all)
	slices.SortStableFunc(list, func(a, b weft.PeerStatus) int { return cmp.Compare(b.RxBytes+b.TxBytes, a.RxBytes+a.TxBytes) })
	list = list[:metricPeers]
	slices.SortFunc(list, func(a, b weft.PeerStatus) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// general is what is of no peer.
func (s metricSet) general(st weft.Status) {
	s.add("weft_build_info", 1, "version", st.Version)
	s.add("weft_running", float64(boolInt(st.State == weft.Running)))
	s.add("weft_problems", float64(len(st.Problems)))
	s.add("weft_server_connected", float64(boolInt(st.Server.Connected)))
	for _, r := range st.Self.Relays {
		s.add("weft_relay_connected", float64(boolInt(r.UDP)), "relay", r.Name, "transport", "udp")
		s.add("weft_relay_connected", float64(boolInt(r.Stream)), "relay", r.Name, "transport", "stream")
		if r.UDP && r.RTTms > 0 {
			s.add("weft_relay_rtt_seconds", r.RTTms/1000, "relay", r.Name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(st.Self.Refused)) {
		s.add("weft_refused_packets_total", float64(st.Self.Refused[reason]), "reason", reason)
	}
	reached := map[weft.PathKind]int{}
	for _, p := range st.Peers {
		reached[p.Path]++
	}
	for _, kind := range []weft.PathKind{weft.PathDirect, weft.PathRelay, weft.PathNone} {
		s.add("weft_peers", float64(reached[kind]), "path", string(kind))
	}
}

// drops are packets that went nowhere, by the names that the engine has for why.
func (s metricSet) drops(by map[string]uint64) {
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		s.add("weft_dropped_packets_total", float64(by[reason]), "reason", reason)
	}
}

// dropsByReason are the engine's counts by their names in JSON.
func dropsByReason(d engine.Drops) (by map[string]uint64, err error) {
	b, err := json.Marshal(d)
	if err == nil {
		err = json.Unmarshal(b, &by)
	}
	return by, err
}

// peer is what is of one.
func (s metricSet) peer(p weft.PeerStatus, doc weft.Paths) {
	of := []string{"peer", p.Name}
	s.add("weft_peer_online", float64(boolInt(p.Online)), of...)
	if p.Refused.Packets > 0 {
		s.add("weft_peer_refused_packets_total", float64(p.Refused.Packets), of...)
	}
	if !p.LastHandshake.IsZero() {
		s.add("weft_peer_last_handshake_seconds", float64(p.LastHandshake.UnixMilli())/1000, of...)
	}
	b := doc.Bond
	s.add("weft_bond_active", float64(boolInt(b.On)), of...)
	if b.On {
		s.add("weft_bond_queue_packets", float64(b.QueuePackets), of...)
		s.add("weft_bond_queue_bytes", float64(b.QueueBytes), of...)
	}
	if r := b.Received; r != (weft.BondReceived{}) {
		s.add("weft_bond_received_packets_total", float64(r.Delivered), of...)
		s.add("weft_bond_held_packets_total", float64(r.Held), of...)
		s.add("weft_bond_reordered_packets_total", float64(r.Reordered), of...)
		s.add("weft_bond_late_packets_total", float64(r.Late), of...)
		s.add("weft_bond_duplicate_packets_total", float64(r.Duplicates), of...)
		s.add("weft_bond_gaps_total", float64(r.GapsPassed), "peer", p.Name, "why", "passed")
		s.add("weft_bond_gaps_total", float64(r.GapsTimedOut), "peer", p.Name, "why", "timeout")
	}
	type name struct {
		link, remote string
		method       weft.Method
	}
	told := map[name]bool{} // by sockets of their own, several paths may lead to one place
	for _, x := range mostUsed(doc.Paths) {
		if n := (name{x.Link, x.Remote, x.Method}); !told[n] {
			told[n] = true
			s.path(p.Name, x)
		}
	}
}

// mostUsed are the paths that have metrics: those that carry data, and then those that carried most.
func mostUsed(all []weft.PathStatus) []weft.PathStatus {
	if len(all) <= metricPaths {
		return all
	}
	list := slices.Clone(all)
	slices.SortStableFunc(list, func(a, b weft.PathStatus) int {
		return cmp.Or(boolInt(carries(b))-boolInt(carries(a)), cmp.Compare(b.Load.TxBytes+b.Load.RxBytes, a.Load.TxBytes+a.Load.RxBytes))
	})
	return list[:metricPaths]
}

func carries(x weft.PathStatus) bool {
	return x.State == weft.PathInUse || x.State == weft.PathActive || x.State == weft.PathReturning
}

// path is what is of one path: the labels name it, and no other path has the same.
func (s metricSet) path(peer string, x weft.PathStatus) {
	of := []string{"peer", peer, "link", x.Link, "method", x.Method.String(), "remote", x.Remote}
	works := x.State != weft.PathFailed && x.State != weft.PathSilent && x.State != weft.PathUntested
	s.add("weft_path_info", 1, append(slices.Clone(of), "state", string(x.State), "kind", x.Kind)...)
	s.add("weft_path_carries", float64(boolInt(carries(x))), of...)
	s.add("weft_path_works", float64(boolInt(works)), of...)
	s.add("weft_path_metric", float64(x.Metric), of...)
	if x.RTTms > 0 {
		s.add("weft_path_rtt_seconds", x.RTTms/1000, of...)
	}
	s.add("weft_path_loss_ratio", x.Loss, of...)
	s.add("weft_path_share_ratio", x.Load.Share, of...)
	s.add("weft_path_transmit_bytes_total", float64(x.Load.TxBytes), of...)
	s.add("weft_path_receive_bytes_total", float64(x.Load.RxBytes), of...)
	s.add("weft_path_transmit_packets_total", float64(x.Load.TxPackets), of...)
	s.add("weft_path_receive_packets_total", float64(x.Load.RxPackets), of...)
	if b := x.Bonded; b != (weft.BondedPath{}) {
		s.add("weft_path_delivery_rate_bytes", b.Rate/8, of...)
		s.add("weft_path_in_flight_bytes", float64(b.InFlight), of...)
		s.add("weft_path_window_bytes", float64(b.Window), of...)
		s.add("weft_path_lost_packets_total", float64(b.Lost), of...)
		s.add("weft_path_again_packets_total", float64(b.Again), of...)
	}
}
