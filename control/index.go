package control

import (
	"crypto/sha256"
	"crypto/subtle"
	"strconv"
	"strings"
	"time"

	"weft"
	"weft/control/store"
	"weft/key"
)

// An index finds things by other than their number. It is the writer's own; a tx that fails takes its changes back.
type index struct {
	machines map[key.MachinePublic]weft.NodeID
	relays   map[key.MachinePublic]weft.RelayID
	keys     map[key.NodePublic]weft.NodeID
	names    names
	secrets  map[[8]byte]uint32 // the beginning of a join key's hash -> its number
	live     map[weft.NodeID]*session
	stations map[weft.RelayID]*session                // relays' streams
	seen     map[weft.NodeID]time.Time                // not stored yet
	behind   map[weft.NodeID]map[weft.NodeID]struct{} // gateways -> plain members there
}

func newIndex() index {
	return index{
		machines: make(map[key.MachinePublic]weft.NodeID),
		relays:   make(map[key.MachinePublic]weft.RelayID),
		keys:     make(map[key.NodePublic]weft.NodeID),
		names:    names{taken: make(map[string]weft.NodeID), suffixes: make(map[string]*numbers)},
		secrets:  make(map[[8]byte]uint32),
		live:     make(map[weft.NodeID]*session),
		stations: make(map[weft.RelayID]*session),
		seen:     make(map[weft.NodeID]time.Time),
		behind:   make(map[weft.NodeID]map[weft.NodeID]struct{}),
	}
}

// indexNode moves the index from one state of a node to the next; nil stands for none.
func (t *tx) indexNode(from, to *entry) {
	if from != nil && to != nil && from.Machine == to.Machine && from.Key == to.Key && from.Name == to.Name {
		return
	}
	ix := &t.s.index
	move := func(from, to *entry) {
		if from != nil {
			delete(ix.machines, from.Machine)
			delete(ix.keys, from.Key)
			ix.names.release(from.Name)
			ix.setBehind(from, false)
		}
		if to != nil {
			if !to.Machine.IsZero() {
				ix.machines[to.Machine] = to.ID
			}
			ix.setBehind(to, true)
			ix.keys[to.Key] = to.ID
			ix.names.claim(to.Name, to.ID)
		}
	}
	move(from, to)
	t.undo = append(t.undo, func() { move(to, from) })
}

// setLive makes a session the stream of its node; nil: it has none.
func (t *tx) setLive(id weft.NodeID, c *session) (before *session) {
	return swap(t, t.s.index.live, id, c)
}

// setStation does the same for a relay.
func (t *tx) setStation(id weft.RelayID, c *session) (before *session) {
	return swap(t, t.s.index.stations, id, c)
}

func swap[K comparable](t *tx, m map[K]*session, id K, c *session) (before *session) {
	put := func(c *session) {
		if c == nil {
			delete(m, id)
		} else {
			m[id] = c
		}
	}
	before = m[id]
	put(c)
	t.undo = append(t.undo, func() { put(before) })
	return before
}

// setRelayMachine notes whose machine key a relay's is; zero: nobody's any more.
func (t *tx) setRelayMachine(machine key.MachinePublic, id weft.RelayID) {
	m := t.s.index.relays
	before := m[machine]
	put := func(id weft.RelayID) {
		if id == 0 {
			delete(m, machine)
		} else {
			m[machine] = id
		}
	}
	put(id)
	t.undo = append(t.undo, func() { put(before) })
}

// hashSecret is what is kept of a join key's secret. The secret has 160 random bits: there is nothing to slow down.
func hashSecret(secret []byte) [32]byte { return sha256.Sum256(secret) }

// addSecret notes a key's hash. It reports false where another one's begins with the same bytes.
func (t *tx) addSecret(k store.JoinKey) bool {
	handle := [8]byte(k.Hash[:8])
	if _, ok := t.s.index.secrets[handle]; ok {
		return false
	}
	t.s.index.secrets[handle] = k.ID
	t.undo = append(t.undo, func() { delete(t.s.index.secrets, handle) })
	return true
}

// keyOf finds the join key with a secret. It is looked up by a part of its hash, which tells whoever measures the
// time nothing about another secret's; the rest is compared in constant time.
func (t *tx) keyOf(secret []byte) (store.JoinKey, bool) {
	hash := hashSecret(secret)
	k, ok := t.keys.get(t.s.index.secrets[[8]byte(hash[:8])])
	if !ok || subtle.ConstantTimeCompare(k.Hash[:], hash[:]) != 1 {
		return store.JoinKey{}, false
	}
	return *k, true
}

// names are the nodes' names: which are taken, and the lowest number free behind a name that several want.
type names struct {
	taken    map[string]weft.NodeID
	suffixes map[string]*numbers // name without number -> numbers behind it that are taken
}

// anonymous is the name of a machine that does not wish for a usable one.
const anonymous = "node"

// reserved are names that programs give a meaning of their own: the machine itself (RFC 6761 section 6.3), and
// what old clients look up in the local domain and then obey. Whoever got one of the latter would be everybody's
// proxy.
var reserved = map[string]bool{"localhost": true, "broadcasthost": true, "wpad": true, "isatap": true, "weft": true}

// cleanWish makes a name of a wish. A machine cannot be asked again, so one that calls itself by a reserved name is
// named as if it had none; so is one that calls itself by a number, which every resolver takes for an address
// (inet_aton(3)).
func cleanWish(wish string) string {
	name := weft.CleanName(wish)
	if _, err := strconv.ParseUint(name, 0, 64); err == nil {
		name = weft.CleanName(anonymous + "-" + name)
	}
	if name == "" || reserved[name] {
		name = anonymous
	}
	return name
}

// free finds the name for a machine that wishes for one: the wish, or the wish with the lowest free number behind it.
func (n *names) free(wish string) string {
	base := cleanWish(wish)
	if _, taken := n.taken[base]; !taken {
		return base
	}
	base = strings.TrimRight(base[:min(len(base), weft.MaxNameLength-len("-4294967295"))], "-")
	return base + "-" + strconv.Itoa(n.suffixes[base].firstFree())
}

func (n *names) claim(name string, id weft.NodeID) {
	n.taken[name] = id
	if base, k, ok := splitNumber(name); ok {
		if n.suffixes[base] == nil {
			n.suffixes[base] = &numbers{words: make(map[int]uint64), low: 2}
		}
		n.suffixes[base].words[k/64] |= 1 << (k % 64)
	}
}

func (n *names) release(name string) {
	delete(n.taken, name)
	if base, k, ok := splitNumber(name); ok && n.suffixes[base] != nil && n.suffixes[base].clear(k) {
		delete(n.suffixes, base)
	}
}

// splitNumber takes a name apart that free might have made.
func splitNumber(name string) (base string, k int, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 1 {
		return "", 0, false
	}
	k, err := strconv.Atoi(name[i+1:])
	return name[:i], k, err == nil && k >= 2 && name[i+1:] == strconv.Itoa(k)
}

// numbers is a set of numbers from 2 upwards, in words of 64 bits, of which those of zero are left out.
type numbers struct {
	words map[int]uint64
	low   int // all below are in the set
}

// clear reports whether nothing is left.
func (s *numbers) clear(k int) (empty bool) {
	s.low = min(s.low, k)
	if s.words[k/64] &^= 1 << (k % 64); s.words[k/64] == 0 {
		delete(s.words, k/64)
	}
	return len(s.words) == 0
}

// firstFree returns the lowest number that is not in the set. A nil set is empty.
func (s *numbers) firstFree() int {
	if s == nil {
		return 2
	}
	for s.words[s.low/64]&(1<<(s.low%64)) != 0 {
		s.low++
	}
	return s.low
}
