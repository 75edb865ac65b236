// Package storetest is what every [store.Store] must pass, and a Store in memory for the tests of those who use
// one.
package storetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/control/store"
)

// Memory is a Store that forgets everything when the process ends, but not on Close: it can be "opened" again by
// simply being used again. Its zero value is an empty store.
type Memory struct {
	// Fail, when set, is asked before every Apply; what it returns is Apply's error, and nothing is changed.
	Fail func(store.Batch) error

	mu sync.Mutex
	st tables
}

type tables struct {
	network store.Network
	users   map[string]store.User
	keys    map[uint32]store.JoinKey
	nodes   map[weft.NodeID]store.Node
	relays  map[weft.RelayID]store.Relay
	revoked map[weft.NodeID]store.Revocation
	docs    map[string]store.Document
	unique  map[any]any // what may be there once -> whose it is
}

// Unique values, told apart by their types.
type (
	nodeName  string
	relayName string
	relayBox  [32]byte
	ofNode    weft.NodeID
	ofRelay   weft.RelayID
	ofKey     uint32
	ofUser    string
	identity  struct{ issuer, subject string }
)

// Load implements [store.Store].
func (m *Memory) Load(context.Context) (store.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := store.State{
		Network: m.st.network,
		Users:   sorted(m.st.users),
		Keys:    sorted(m.st.keys),
		Nodes:   sorted(m.st.nodes),
		Relays:  sorted(m.st.relays),
		Revoked: sorted(m.st.revoked), Documents: sorted(m.st.docs),
	}
	st.Network.Given = slices.Clone(st.Network.Given)
	return st, nil
}

func sorted[K cmp.Ordered, V any](m map[K]V) []V {
	var out []V
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// Apply implements [store.Store].
func (m *Memory) Apply(_ context.Context, b store.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Fail != nil {
		if err := m.Fail(b); err != nil {
			return err
		}
	}
	next := m.st.clone()
	for _, op := range b {
		if err := next.apply(op); err != nil {
			return fmt.Errorf("%T: %w", op, err)
		}
	}
	m.st = next
	return nil
}

// Close implements [store.Store].
func (m *Memory) Close() error { return nil }

func (t tables) clone() tables {
	t.users = cloned(t.users)
	t.keys = cloned(t.keys)
	t.nodes = cloned(t.nodes)
	t.relays = cloned(t.relays)
	t.revoked = cloned(t.revoked)
	t.docs = cloned(t.docs)
	t.unique = cloned(t.unique)
	return t
}

func cloned[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return make(map[K]V)
	}
	return maps.Clone(m)
}

func (t *tables) apply(op store.Op) error {
	switch o := op.(type) {
	case store.SetNetwork:
		if o.NextNode < t.network.NextNode || o.NextRelay < t.network.NextRelay || o.NextKey < t.network.NextKey {
			return fmt.Errorf("%w: a counter would go back", store.ErrConflict)
		}
		t.network = store.Network(o)
		t.network.Given = slices.Clone(o.Given)
	case store.PutUser:
		if (o.Issuer == "") != (o.Subject == "") {
			return fmt.Errorf("%w: user %s has half an identity", store.ErrConflict, o.Name)
		}
		var values []any
		if o.Issuer != "" {
			values = append(values, identity{o.Issuer, o.Subject})
		}
		if err := t.claim(ofUser(o.Name), "", values...); err != nil {
			return err
		}
		o.Groups = emptyIsNil(o.Groups)
		o.Created, o.Expires, o.Disabled = kept(o.Created), kept(o.Expires), kept(o.Disabled)
		t.users[o.Name] = store.User(o)
	case store.DropUser:
		for _, n := range t.nodes {
			if n.User == o.Name && o.Name != "" {
				return fmt.Errorf("%w: user %s has nodes", store.ErrConflict, o.Name)
			}
		}
		for _, k := range t.keys {
			if k.User == o.Name && o.Name != "" {
				return fmt.Errorf("%w: user %s has keys", store.ErrConflict, o.Name)
			}
		}
		t.release(ofUser(o.Name))
		delete(t.users, o.Name)
	case store.PutKey:
		if err := t.claim(ofKey(o.ID), o.User, o.Hash); err != nil {
			return err
		}
		o.Tags = emptyIsNil(o.Tags)
		o.Created, o.Expires, o.Used, o.Revoked = kept(o.Created), kept(o.Expires), kept(o.Used), kept(o.Revoked)
		o.NodeLifetime = o.NodeLifetime.Truncate(store.Precision)
		t.keys[o.ID] = store.JoinKey(o)
	case store.PutNode:
		if o.Machine.IsZero() != (o.Gateway != 0) {
			return fmt.Errorf("%w: node %d must have a machine key or a gateway, and not both", store.ErrConflict, o.ID)
		}
		values := []any{o.Key, nodeName(o.Name), o.IPv4, o.IPv6}
		if !o.Machine.IsZero() {
			values = append(values, o.Machine)
		}
		if err := t.claim(ofNode(o.ID), o.User, values...); err != nil {
			return err
		}
		o.Tags, o.Advertised, o.Routes = emptyIsNil(o.Tags), emptyIsNil(o.Advertised), emptyIsNil(o.Routes)
		o.Created, o.Expires, o.Seen = kept(o.Created), kept(o.Expires), kept(o.Seen)
		o.Approved, o.Disabled, o.Rotated = kept(o.Approved), kept(o.Disabled), kept(o.Rotated)
		t.nodes[o.ID] = store.Node(o)
	case store.DropNode:
		t.release(ofNode(o.ID))
		delete(t.nodes, o.ID)
	case store.PutRelay:
		type relayMachine struct{ k any } // a relay's machine and a node's are unique among themselves
		if err := t.claim(ofRelay(o.ID), "", relayMachine{o.Machine}, relayBox(o.Key.Bytes()), relayName(o.Name)); err != nil {
			return err
		}
		o.UDP, o.Fingerprint, o.Created = emptyIsNil(o.UDP), emptyIsNil(o.Fingerprint), kept(o.Created)
		t.relays[o.ID] = store.Relay(o)
	case store.DropRelay:
		t.release(ofRelay(o.ID))
		delete(t.relays, o.ID)
	case store.PutRevocation:
		t.revoked[o.Node] = store.Revocation{Node: o.Node, Until: kept(o.Until)}
	case store.DropRevocation:
		delete(t.revoked, o.Node)
	case store.Seen:
		if n, ok := t.nodes[o.Node]; ok {
			n.Seen = kept(o.At)
			t.nodes[o.Node] = n
		}
	case store.PutDocument:
		t.docs[o.Name] = store.Document{Name: o.Name, Text: o.Text, Changed: kept(o.Changed)}
	case store.DropDocument:
		delete(t.docs, o.Name)
	default:
		return fmt.Errorf("unknown operation")
	}
	return nil
}

// claim makes the unique values the owner's, in place of those that it had.
func (t *tables) claim(owner any, user string, values ...any) error {
	if _, ok := t.users[user]; user != "" && !ok {
		return fmt.Errorf("%w: there is no user %s", store.ErrConflict, user)
	}
	for _, v := range values {
		if have, ok := t.unique[v]; ok && have != owner {
			return fmt.Errorf("%w: %v is taken", store.ErrConflict, v)
		}
	}
	t.release(owner)
	for _, v := range values {
		t.unique[v] = owner
	}
	return nil
}

func (t *tables) release(owner any) {
	maps.DeleteFunc(t.unique, func(_, have any) bool { return have == owner })
}

func emptyIsNil[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return slices.Clone(s)
}

func kept(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMilli(t.UnixMilli()).UTC()
}
