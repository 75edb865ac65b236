package real

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft/lab/router"
	"weft/lab/scenario"
	"weft/wire"
)

// A trace is the packets that routers have judged, with the hosts at either end where those are plain to see.
type trace struct {
	began   time.Time // of what the packets' times count from, until they are shown
	mu      sync.Mutex
	packets []scenario.Packet
	names   map[netip.Addr]string // of hosts, by the addresses that are theirs alone
}

// followPackets lets the routers tell of packets, if that was asked for.
func (w *world) followPackets() error {
	if !w.options.KeepTrace {
		return nil
	}
	w.trace.began = time.Now()
	w.trace.names = map[netip.Addr]string{}
	for _, m := range w.order {
		w.trace.names[m.host.Addr()] = m.Name
		if a := m.host.Addr6(); a.IsValid() {
			w.trace.names[a] = m.Name
		}
	}
	for _, r := range w.Routers {
		if r.Kernel != "" {
			continue // the kernel tells of none
		}
		if err := w.routers[r.Name].Trace(w.follow); err != nil {
			return err
		}
	}
	return nil
}

// follow keeps what a router tells. A packet that a router has first seen from a host was sent there just before, and
// one that it has passed on to a host arrives there.
func (w *world) follow(e router.Event) {
	if e.Protocol != "udp" {
		return
	}
	t := &w.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	p := scenario.Packet{At: e.At.Sub(t.began), From: e.Src.String(), To: e.Dst.String(), Where: e.Router,
		What: what(e.Payload), Dropped: e.Dropped}
	if e.Dropped {
		p.Why = e.Verdict
	}
	if name, ok := t.names[e.Src.Addr()]; ok {
		sent := p
		sent.Where, sent.Dropped, sent.Why = name, false, ""
		t.add(w.options.MaxTrace, sent)
	}
	t.add(w.options.MaxTrace, p)
	if name, ok := t.names[e.NewDst.Addr()]; ok && !e.Dropped {
		p.From, p.To, p.Where = e.NewSrc.String(), e.NewDst.String(), name
		t.add(w.options.MaxTrace, p)
	}
}

func (t *trace) add(most int, p scenario.Packet) {
	if most == 0 || len(t.packets) < most {
		t.packets = append(t.packets, p)
	}
}

// since is the trace with its times counted from time zero.
func (t *trace) since(zero time.Time) []scenario.Packet {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.packets)
	if !zero.IsZero() {
		for i := range list {
			list[i].At -= zero.Sub(t.began)
		}
	}
	return list
}

// Names of what travels over UDP. WireGuard's types are the first byte's; the whitepaper has them in section 5.4.
var (
	wireguardNames = [...]string{1: "WireGuard initiation", 2: "WireGuard response", 3: "WireGuard cookie", 4: "WireGuard data"}
	weftNames      = [...]string{
		wire.KindPeer: "weft peer message", wire.KindData: "relayed data", wire.KindBind: "relay bind",
		wire.KindChallenge: "relay challenge", wire.KindBound: "relay bound", wire.KindRefused: "relay refusal",
		wire.KindLocate: "relay locate", wire.KindLocated: "relay located", wire.KindProbe: "relay probe",
		wire.KindProbed: "relay probed",
	}
)

// what says what a datagram is, as far as that is to be seen from outside.
func what(b []byte) string {
	name := "datagram"
	switch wire.Classify(b) {
	case wire.ClassWireGuard:
		name = wireguardNames[b[0]]
	case wire.ClassSTUN:
		name = "STUN request"
		if b[0]&1 != 0 { // the class bits of RFC 8489 section 5: 0b10 and 0b11 are responses
			name = "STUN response"
		}
	case wire.ClassWeft:
		if k, ok := wire.KindOf(b); ok && int(k) < len(weftNames) {
			name = weftNames[k]
		}
	}
	return fmt.Sprintf("%s, %d bytes", name, len(b))
}
