package control

import (
	"encoding/json"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"time"

	"weft"
	"weft/control/store"
)

// logLength is how many of the last changes a snapshot at least remembers. A session or a returning node that
// is further behind gets the whole map: at this length a delta is about as long.
const logLength = 4096

// A snapshot is the whole state at one moment. It is never changed.
type snapshot struct {
	version uint64 // counts what is visible in maps
	log     []logged
	logFrom uint64 // the log has every change after this version

	net    store.Network
	users  map[string]store.User
	keys   tree[*store.JoinKey]
	nodes  tree[*entry]
	relays relays
	law    *law

	resolving *resolving

	documents map[string]store.Document // by name; replaced, never changed

	// revoked are the nodes whose tickets no relay honours any more, with the time until which that must be
	// remembered; zero for nodes that are no members at present.
	revoked  tree[time.Time]
	revision uint64 // counts changes of revoked and of who of the relays is in

	// superseded is closed when there is a snapshot with another version or revision.
	superseded chan struct{}
}

// logged says that at a version a node changed, came or went; relaysChanged stands for the list of relays.
type logged struct {
	version uint64
	node    weft.NodeID
}

const relaysChanged weft.NodeID = 0

// An entry is one node in a snapshot. It is never changed either; a change makes another one.
type entry struct {
	store.Node
	presence
	born     uint64   // the version with which it came
	standing standing // of one that is no member nobody's map has anything
	json     *lazyJSON
	rules    *ruling
	ruled    uint64 // the version with which it got them
}

// presence is what is known of a node only while the server runs.
type presence struct {
	online     bool
	candidates []weft.Candidate
	home       weft.RelayID
	nat        string
	left       time.Time // when its last stream ended, by the monotonic clock; zero while it has one

	// For the administrator.
	version, system, remote string
}

// node is the entry as maps have it.
func (e *entry) node() weft.Node {
	return weft.Node{
		ID: e.ID, Name: e.Name, Key: e.Key, Addrs: []netip.Addr{e.IPv4, e.IPv6}, User: e.User, Tags: e.Tags,
		Candidates: e.candidates, HomeRelay: e.home, NAT: e.nat, Online: e.online, LastSeen: e.Seen,
		Ephemeral: e.Ephemeral, Expires: e.Expires, Gateway: e.Gateway, Routes: e.routes(),
	}
}

// relays are the network's relays as maps have them: the embedded one and the stand-alone ones.
type relays struct {
	embedded *weft.Relay
	alone    []relayEntry // by number
	list     []weft.Relay // all of them, by number
	json     *lazyJSON
}

type relayEntry struct {
	store.Relay
	connected       bool
	version, remote string
}

func (r relays) with(alone []relayEntry) relays {
	r.alone, r.list = alone, []weft.Relay{}
	if r.embedded != nil {
		r.list = append(r.list, *r.embedded)
	}
	for _, a := range alone {
		r.list = append(r.list, a.Relay.Relay)
	}
	r.json = new(lazyJSON)
	return r
}

func (r relays) find(id weft.RelayID) (relayEntry, bool) {
	i, ok := slices.BinarySearchFunc(r.alone, id, func(e relayEntry, id weft.RelayID) int { return int(e.ID) - int(id) })
	if !ok {
		return relayEntry{}, false
	}
	return r.alone[i], true
}

// known reports whether a node may call this relay its home.
func (r relays) known(id weft.RelayID) bool {
	return slices.ContainsFunc(r.list, func(l weft.Relay) bool { return l.ID == id })
}

// lazyJSON is something's encoding, made when the first one asks for it.
type lazyJSON struct {
	once sync.Once
	text []byte
}

func (l *lazyJSON) of(v func() any) []byte {
	l.once.Do(func() {
		b, err := json.Marshal(v())
		if err != nil {
			panic("nodes and relays are always JSON: " + err.Error())
		}
		l.text = b
	})
	return l.text
}

func (e *entry) encoded() []byte { return e.json.of(func() any { return e.node() }) }
func (r relays) encoded() []byte { return r.json.of(func() any { return r.list }) }

// visible returns the node as others see it, if they do.
func (s *snapshot) visible(id weft.NodeID) (*entry, bool) {
	e, ok := s.nodes.get(uint32(id))
	return e, ok && e.standing == member
}

// since lists what changed after a version, each once and in ascending order. ok is false when the log does not
// reach back that far, or the version is none of this server's.
func (s *snapshot) since(version uint64) (changed []weft.NodeID, ok bool) {
	if version < s.logFrom || version > s.version {
		return nil, false
	}
	from := sort.Search(len(s.log), func(i int) bool { return s.log[i].version > version })
	for _, l := range s.log[from:] {
		changed = append(changed, l.node)
	}
	slices.Sort(changed)
	return slices.Compact(changed), true
}

// revokedNodes lists the nodes whose tickets are revoked.
func (s *snapshot) revokedNodes() []weft.NodeID {
	out := make([]weft.NodeID, 0, s.revoked.len())
	for id := range s.revoked.all() {
		out = append(out, weft.NodeID(id))
	}
	return out
}
