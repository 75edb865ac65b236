package engine

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/wireguard"
)

// maxWays is how many vias of one peer are counted at most. A node announces up to 32 candidates
// (wire.MaxCandidates), and each NAT on the way may show another port.
const maxWays = 64

// A peer is what the engine keeps of a peer.
type peer struct {
	// What each packet asks comes first: the lines of memory are fetched ahead of it (see near).
	id      weft.NodeID
	plain   bool
	busy    atomic.Bool                    // the control goroutine looks at the times below
	current atomic.Pointer[session]        // nil: there is none to send by
	route   atomic.Pointer[way]            // nil: none
	bond    atomic.Pointer[bonded]         // nil: there is one way, or none
	order   atomic.Pointer[ordered]        // nil: the peer has not offered a bond
	also    atomic.Pointer[[]netip.Prefix] // as Peer.Also; nil: none

	// When something last went or came, in nanoseconds after Engine.began; 0: never. Data are packets with something in them.
	sent, received, dataSent, dataReceived atomic.Int64
	lastData                               atomic.Int64 // either way, and handshakes that are begun
	handshake                              atomic.Int64 // when the last was completed

	refused refusals
	wanting atomic.Bool // a handshake was asked for, and has not ended
	waiting waiting

	held held // the control goroutine's

	numbered atomic.Uint32 // the last number that a way was given
	withdrew atomic.Int64  // when it was last told that there is no bond, in nanoseconds after Engine.began; 0: never

	key key.NodePublic
	wg  *wireguard.Peer // the control goroutine's

	ways   []*way // guarded by Engine.mu; in the order of their appearance
	config Peer   // guarded by Engine.setting
}

// A way is one via of a peer, with what has gone by it. Once made, all but what is atomic stays as it is.
type way struct {
	via  weft.Via
	dest atomic.Pointer[dest]
	mtu  atomic.Int32 // the longest inner packet by it, in bytes; 0: as long as the device's

	txPackets, txBytes, rxPackets, rxBytes atomic.Uint64

	tcp atomic.Pointer[connected]

	number atomic.Uint32 // of the path that it is to bonds; 0: it has none yet

	// One bond follows another, and for a moment both are at work.
	named    atomic.Bool   // the peer has shown that it knows the number
	carried  atomic.Bool   // data went by it that the peer could not yet name
	offered  atomic.Int64  // when it last said its number, in nanoseconds after Engine.began; 0: never
	reported atomic.Uint32 // packets that came by it, as the peer has counted them
	heard    atomic.Int64  // when the peer said that there were more, in nanoseconds after Engine.began; 0: never
}

// A dest is where a way leads, for the sockets, as of one generation of them.
type dest struct {
	to         *host.UDPDest
	generation uint64
}

// held is a handshake message that waits for a route.
type held struct {
	at      time.Time
	message []byte
}

// peer finds a peer, or nil.
func (e *Engine) peer(id weft.NodeID) *peer {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.peers[id]
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
		i := slices.IndexFunc(p.ways, func(w *way) bool { return w != route && e.sources[w.via.Addr].way != w && w.tcp.Load() == nil })
		if i < 0 { // all but the route and connections, of which there are fewer (package direct), are learned
			i = slices.IndexFunc(p.ways, func(w *way) bool { return w != route && w.tcp.Load() == nil })
			delete(e.sources, p.ways[i].via.Addr)
		}
		p.ways = slices.Delete(p.ways, i, i+1)
		e.sourced.Add(1)
	}
	w := &way{via: via}
	p.ways = append(p.ways, w)
	return w
}

// SetRoute says where data to a peer goes from now on. After the zero Via, it goes nowhere. A peer that is
// not known has no route.
func (e *Engine) SetRoute(id weft.NodeID, via weft.Via) {
	via = canonical(via)
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
		e.sockets.Carry(via.Link)
		e.control.post(post{peer: p, what: routed})
	}
}

// SetMTU says how long an inner packet by a via may be, in bytes, for what it becomes to pass whole; 0: as long as the
// device's MTU. Longer ones are cut, if they are super-packets, or refused as routers do (package fit).
func (e *Engine) SetMTU(id weft.NodeID, via weft.Via, inner int) {
	via = canonical(via)
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[id]; p != nil {
		e.way(p, via).mtu.Store(int32(inner))
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
		e.sourced.Add(1)
	}
}

// Forget says that an underlay address is nobody's. What was counted stays counted.
func (e *Engine) Forget(addr netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sources, unmap(addr))
	e.sourced.Add(1)
}

// roam has a plain peer's packets go where it was heard from (section 2.1 of WireGuard's paper), and reports whether that is
// elsewhere than before: the control goroutine is to know that then. Others do not roam: their routes are told.
func (e *Engine) roam(p *peer, via weft.Via) bool {
	if w := p.route.Load(); w != nil && w.via == via {
		return false
	}
	e.mu.Lock()
	w := e.way(p, via)
	if via.Method == weft.Direct {
		e.sources[via.Addr] = source{p, e.way(p, weft.DirectVia(0, via.Addr))}
		e.sourced.Add(1)
	}
	p.route.Store(w)
	e.mu.Unlock()
	e.sockets.Carry(via.Link)
	return true
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

// Handshake tells when the last handshake with a peer was completed; zero: never.
func (e *Engine) Handshake(id weft.NodeID) time.Time {
	if p := e.peer(id); p != nil {
		return e.at(p.handshake.Load())
	}
	return time.Time{}
}

// unmap makes one address of the two forms that IPv4 has.
func unmap(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().Is4In6() {
		return a
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// A waiting is packets that wait for a session: the youngest, since an old one is of less use (wireguard-go keeps 128).
type waiting struct {
	mu      sync.Mutex
	packets []*parcel
	bytes   int
}

const (
	// maxWaiting and maxWaitingBytes bound what waits for one peer's session.
	maxWaiting      = 128
	maxWaitingBytes = 256 << 10
)
