package engine

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"weft"
	"weft/key"
)

// maxWays is how many vias of one peer are counted at most. A node announces up to 32 candidates
// (wire.MaxCandidates), and each NAT on the way may show another port.
const maxWays = 64

// A peer is what the engine keeps of a peer, and its endpoint in the device.
type peer struct {
	id  weft.NodeID
	key key.NodePublic

	route    atomic.Pointer[way]  // nil: none
	held     atomic.Pointer[held] // the handshake message that waits for a route
	lastData atomic.Int64         // nanoseconds after Engine.began

	greeted   atomic.Int64 // likewise: when it was last known to receive; 0: never
	initiated atomic.Int64 // likewise: when a handshake initiation last went to it; 0: never

	ways    []*way         // guarded by Engine.mu; in the order of their appearance
	allowed []netip.Prefix // guarded by Engine.setting; sorted
}

// A way is one via of a peer, with what has gone by it. Once made, all but the counters stays as it is.
type way struct {
	via weft.Via
	ep  conn.StdNetEndpoint // of a direct via

	txPackets, txBytes, rxPackets, rxBytes atomic.Uint64
}

type held struct {
	at     time.Time
	packet []byte
}

// A source is whose the packets from somewhere are, and by which way they come. The zero source is nobody's.
type source struct {
	peer *peer
	way  *way
}

var _ conn.Endpoint = (*peer)(nil)

// ClearSrc does nothing: the kernel picks source addresses.
func (p *peer) ClearSrc() {}

// SrcToString has nothing to tell.
func (p *peer) SrcToString() string { return "" }

// SrcIP has nothing to tell.
func (p *peer) SrcIP() netip.Addr { return netip.Addr{} }

// DstToString is the endpoint's name in the device's configuration.
func (p *peer) DstToString() string { return endpointPrefix + strconv.FormatUint(uint64(p.id), 10) }

// DstToBytes is what cookies are bound to. It does not follow the route: a cookie that was got by one path is
// good on another.
func (p *peer) DstToBytes() []byte {
	return binary.BigEndian.AppendUint32([]byte(endpointPrefix), uint32(p.id))
}

// DstIP is what handshakes are limited by when there are too many: one address per peer, from the range that
// RFC 6666 sets aside for no host.
func (p *peer) DstIP() netip.Addr {
	ip := [16]byte{0: 1} // 100::/64
	binary.BigEndian.PutUint32(ip[12:], uint32(p.id))
	return netip.AddrFrom16(ip)
}

// peer finds a peer, or nil.
func (e *Engine) peer(id weft.NodeID) *peer {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.peers[id]
}

// source tells whose an underlay address is, and by which way it comes to a link.
func (e *Engine) source(link weft.LinkID, from netip.AddrPort) source {
	if from.Addr().Is4In6() {
		from = unmap(from)
	}
	e.mu.RLock()
	src := e.sources[from]
	if link == 0 || src.peer == nil {
		e.mu.RUnlock()
		return src
	}
	via := weft.DirectVia(link, from)
	w := src.peer.find(via)
	e.mu.RUnlock()
	if w == nil {
		e.mu.Lock()
		w = e.way(src.peer, via)
		e.mu.Unlock()
	}
	return source{src.peer, w}
}

// A stranger is the endpoint of a packet that came to a spare socket from an address that is nobody's.
type stranger struct {
	*conn.StdNetEndpoint
	link weft.LinkID
}

// relaySource finds the peer that a relay names as the sender.
func (e *Engine) relaySource(id weft.NodeID, via weft.Via) (source, bool) {
	e.mu.RLock()
	p := e.peers[id]
	if p == nil {
		e.mu.RUnlock()
		e.drops.noPeer.Add(1)
		return source{}, false
	}
	w := p.find(via)
	e.mu.RUnlock()
	if w == nil {
		e.mu.Lock()
		w = e.way(p, via)
		e.mu.Unlock()
	}
	return source{p, w}, true
}

func (p *peer) find(via weft.Via) *way {
	for _, w := range p.ways {
		if w.via == via {
			return w
		}
	}
	return nil
}

// way finds or makes the way of a via. When there are too many, the oldest that is not in use is forgotten.
func (e *Engine) way(p *peer, via weft.Via) *way {
	if w := p.find(via); w != nil {
		return w
	}
	if len(p.ways) >= maxWays {
		route := p.route.Load()
		i := slices.IndexFunc(p.ways, func(w *way) bool { return w != route && e.sources[w.via.Addr].way != w })
		if i < 0 { // all but the route are learned
			i = slices.IndexFunc(p.ways, func(w *way) bool { return w != route })
			delete(e.sources, p.ways[i].via.Addr)
		}
		p.ways = slices.Delete(p.ways, i, i+1)
	}
	w := &way{via: via}
	w.ep.AddrPort = via.Addr
	p.ways = append(p.ways, w)
	return w
}

// SetRoute says where data to a peer goes from now on. After the zero Via, it goes nowhere. A peer that is
// not known has no route.
func (e *Engine) SetRoute(id weft.NodeID, via weft.Via) {
	if via.Method == weft.Direct {
		via = weft.DirectVia(via.Link, via.Addr)
	}
	e.mu.Lock()
	p := e.peers[id]
	if p == nil {
		e.mu.Unlock()
		return
	}
	var w *way
	if via != (weft.Via{}) {
		w = e.way(p, via)
	}
	p.route.Store(w)
	e.mu.Unlock()
	if w != nil {
		e.bind.spares.carry(via.Link)
		e.bind.sendHeld(p)
	}
}

// Learn says that packets from an underlay address are a peer's, so that they are counted as its. An address
// is one peer's at a time.
func (e *Engine) Learn(id weft.NodeID, addr netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[id]; p != nil {
		via := weft.DirectVia(0, addr)
		e.sources[via.Addr] = source{p, e.way(p, via)}
	}
}

// Forget says that an underlay address is nobody's. What was counted stays counted.
func (e *Engine) Forget(addr netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sources, unmap(addr))
}

// PathCounters is what has gone by one via of one peer. WireGuard packets alone are counted, of all types and
// with their own lengths, without UDP header or relay prefix: sent when the socket or stream has taken them,
// received before they are opened.
type PathCounters struct {
	Via                                    weft.Via
	TxPackets, TxBytes, RxPackets, RxBytes uint64
}

// Counters appends what has gone by each via of a peer since the engine knows it. Of more than 64 vias, the
// oldest that are out of use are forgotten.
func (e *Engine) Counters(dst []PathCounters, id weft.NodeID) []PathCounters {
	e.mu.RLock()
	defer e.mu.RUnlock()
	p := e.peers[id]
	if p == nil {
		return dst
	}
	for _, w := range p.ways {
		dst = append(dst, PathCounters{
			Via:       w.via,
			TxPackets: w.txPackets.Load(),
			TxBytes:   w.txBytes.Load(),
			RxPackets: w.rxPackets.Load(),
			RxBytes:   w.rxBytes.Load(),
		})
	}
	return dst
}

// callers remembers who began a handshake lately and from where, so that the response can go back there. The
// device tells a response's receiver only by the index that the initiation gave. A flood of initiations makes
// it forget, and then responses go by the route.
type callers struct {
	mu   sync.Mutex
	ring [64]caller
	next int
}

type caller struct {
	index uint32
	at    time.Time
	addr  netip.AddrPort // where it called from, if that is nobody's
	link  weft.LinkID    // and what it called
	way   *way           // else the way by which it called
}

// crossing is how long after our own initiation one from the same peer may have crossed it: a round trip, on all
// but the longest ways.
const crossing = 300 * time.Millisecond

// called notes the packet if it is a handshake initiation. It reports false for one that crossed ours and has to
// give way: each end would answer the other's, and neither could use the answer to its own, until WireGuard tries
// again after 5 s. So the end with the lower number goes on with its own, if that went to a peer who was known to
// receive, and the other end answers it.
func (e *Engine) called(packet []byte, link weft.LinkID, from netip.AddrPort, src source) bool {
	if packet[0] != device.MessageInitiationType || len(packet) != device.MessageInitiationSize {
		return true
	}
	if p := src.peer; p != nil && e.self < p.id {
		own, greeted := p.initiated.Load(), p.greeted.Load()
		if greeted != 0 && own >= greeted && int64(time.Since(e.began))-own < int64(crossing) {
			e.drops.crossed.Add(1)
			return false
		}
	}
	c := caller{index: binary.LittleEndian.Uint32(packet[4:]), at: time.Now(), way: src.way}
	if src.peer == nil {
		c.addr, c.link = unmap(from), link
	}
	e.callers.mu.Lock()
	defer e.callers.mu.Unlock()
	e.callers.ring[e.callers.next] = c
	e.callers.next = (e.callers.next + 1) % len(e.callers.ring)
	return true
}

// take returns the caller of an index, once.
func (c *callers) take(index uint32) (caller, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ring {
		if r := &c.ring[i]; r.index == index && !r.at.IsZero() && time.Since(r.at) < device.RekeyTimeout {
			found := *r
			*r = caller{}
			return found, true
		}
	}
	return caller{}, false
}
