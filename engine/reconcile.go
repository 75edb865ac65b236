package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"weft"
	"weft/key"
)

// A Peer is a node that packets are exchanged with.
type Peer struct {
	ID      weft.NodeID
	Key     key.NodePublic
	Allowed []netip.Prefix // source addresses that it may use, and destinations that are sent to it

	// Plain says that the peer speaks WireGuard alone: it gets no frames, and its way is where it was last heard
	// from; before that Endpoint, which may be none. PSK (zero: none) and Keepalive (zero: none) are WireGuard's.
	Plain     bool
	PSK       [32]byte
	Keepalive time.Duration
	Endpoint  netip.AddrPort
}

// SetPeers makes these the peers, and no others. Peers that do not change are not touched; one whose key
// changes starts anew, without route and counters. What can be done is done: an error names the peers, or the
// prefixes, that are left out. Of two peers that claim one prefix, the one with the lower ID has it.
func (e *Engine) SetPeers(list []Peer) error {
	e.setting.Lock()
	defer e.setting.Unlock()
	want, err := e.check(list)
	errs := []error{err}

	// Removals first: a key that moves to another ID is free then.
	for _, p := range e.known() {
		if w, ok := want[p.id]; !ok || w.Key != p.key {
			e.remove(p)
		}
	}
	for _, id := range sortedIDs(want) {
		w := want[id]
		p := e.peer(id)
		if p != nil && slices.Equal(p.allowed, w.Allowed) {
			continue
		}
		if err := e.configure(p, w); err != nil {
			errs = append(errs, fmt.Errorf("peer %d: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// check sorts out what cannot be, and puts prefixes in one form and order.
func (e *Engine) check(list []Peer) (map[weft.NodeID]Peer, error) {
	var errs []error
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	want := make(map[weft.NodeID]Peer, len(list))
	keys := make(map[key.NodePublic]weft.NodeID, len(list))
	prefixes := make(map[netip.Prefix]weft.NodeID, 2*len(list))
	for _, p := range list {
		_, twice := want[p.ID]
		other, taken := keys[p.Key]
		switch {
		case p.ID == 0 || p.ID == e.self || p.Key == e.key || p.Key.IsZero():
			errs = append(errs, fmt.Errorf("peer %d: it has no number or key of its own", p.ID))
			continue
		case twice:
			errs = append(errs, fmt.Errorf("peer %d is there twice", p.ID))
			continue
		case taken:
			errs = append(errs, fmt.Errorf("peers %d and %d have one key", other, p.ID))
			continue
		}
		var allowed []netip.Prefix
		for _, prefix := range p.Allowed {
			if !prefix.IsValid() || prefix.Addr().Is4In6() {
				errs = append(errs, fmt.Errorf("peer %d: %s is not a prefix of addresses", p.ID, prefix))
				continue
			}
			prefix = prefix.Masked()
			if owner, ok := prefixes[prefix]; ok {
				if owner != p.ID {
					errs = append(errs, fmt.Errorf("peers %d and %d both claim %s", owner, p.ID, prefix))
				}
				continue
			}
			prefixes[prefix] = p.ID
			allowed = append(allowed, prefix)
		}
		slices.SortFunc(allowed, comparePrefix)
		p.Allowed = allowed
		want[p.ID] = p
		keys[p.Key] = p.ID
	}
	return want, errors.Join(errs...)
}

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

func sortedIDs(m map[weft.NodeID]Peer) []weft.NodeID {
	ids := make([]weft.NodeID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (e *Engine) known() []*peer {
	e.mu.RLock()
	defer e.mu.RUnlock()
	list := make([]*peer, 0, len(e.peers))
	for _, p := range e.peers {
		list = append(list, p)
	}
	return list
}

func (e *Engine) remove(p *peer) {
	p.route.Store(nil)
	e.dev.RemovePeer(device.NoisePublicKey(p.key.Bytes()))
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.peers, p.id)
	for _, w := range p.ways {
		if e.sources[w.via.Addr].peer == p {
			delete(e.sources, w.via.Addr)
		}
	}
}

// configure adds a peer (p is nil) or changes the prefixes of one. Prefixes that stay are not taken away for a
// moment, as replacing them would.
func (e *Engine) configure(p *peer, w Peer) error {
	var b strings.Builder
	k := w.Key.Bytes()
	fmt.Fprintf(&b, "public_key=%s\n", hex.EncodeToString(k[:]))
	var have []netip.Prefix
	added := p == nil
	if added {
		p = &peer{id: w.ID, key: w.Key}
		p.lastData.Store(-int64(idleAfter))
		e.mu.Lock()
		e.peers[p.id] = p // now ParseEndpoint finds it
		e.mu.Unlock()
		fmt.Fprintf(&b, "endpoint=%s\n", p.DstToString())
	} else {
		b.WriteString("update_only=true\n")
		have = p.allowed
	}
	for _, prefix := range have {
		if !slices.Contains(w.Allowed, prefix) {
			fmt.Fprintf(&b, "allowed_ip=-%s\n", prefix)
		}
	}
	for _, prefix := range w.Allowed {
		if !slices.Contains(have, prefix) {
			fmt.Fprintf(&b, "allowed_ip=%s\n", prefix)
		}
	}
	if err := e.dev.IpcSet(b.String()); err != nil {
		if added {
			e.remove(p)
		}
		return err
	}
	p.allowed = w.Allowed
	return nil
}

// handshakeFresh is how old what Handshake tells may be: asking the device costs work for every peer, so one
// answer serves a whole listing.
const handshakeFresh = 500 * time.Millisecond

type handshakes struct {
	mu sync.Mutex
	at time.Time
	by map[[key.Size]byte]time.Time
}

// Handshake tells when the last handshake with a peer was completed, as of half a second ago; zero: never.
func (e *Engine) Handshake(id weft.NodeID) time.Time {
	p := e.peer(id)
	if p == nil {
		return time.Time{}
	}
	h := &e.handshakes
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) >= handshakeFresh {
		h.by = make(map[[key.Size]byte]time.Time)
		if err := e.dev.IpcGetOperation(handshakeReader(h.by)); err != nil {
			e.quiet.say(slog.LevelWarn, "handshakes", "asking the device for handshakes failed", "error", err)
		}
		h.at = time.Now()
	}
	return h.by[p.key.Bytes()]
}

// handshakeReader picks keys and handshake times out of what the device writes of itself.
type handshakeReader map[[key.Size]byte]time.Time

func (r handshakeReader) Write(b []byte) (int, error) {
	var k [key.Size]byte
	var seconds, nanos int64
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		switch name {
		case "public_key":
			hex.Decode(k[:], []byte(value))
		case "last_handshake_time_sec":
			seconds, _ = strconv.ParseInt(value, 10, 64)
		case "last_handshake_time_nsec":
			nanos, _ = strconv.ParseInt(value, 10, 64)
			if seconds != 0 || nanos != 0 {
				r[k] = time.Unix(seconds, nanos)
			}
		}
	}
	return len(b), nil
}
