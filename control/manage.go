package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft"
	"weft/control/store"
	"weft/wire"
)

// What the administrator does, whoever carries the word: the local socket today.

const (
	maxTags = 16
	// maxLifetime bounds ends to come: beyond it a time.Duration from now would not be a time any more.
	maxLifetime = 100 * 365 * 24 * time.Hour
)

// userName is what a user may be called: an account's name or mail address, and nothing that plays tricks on a
// terminal or in a policy.
var userName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$`)

// Status tells how the server is.
func (s *Server) Status() Status {
	snap := s.now.Load()
	st := Status{
		Schema: weft.SchemaVersion, Version: weft.Version, URL: s.url, Key: s.keys.Server.Public().String(),
		Fingerprint: hex.EncodeToString(s.print), Network: hex.EncodeToString(snap.net.Name[:]),
		IPv4: snap.net.IPv4, IPv6: snap.net.IPv6, Service: serviceAddr(snap.net.IPv4), MapVersion: snap.version,
		Users: len(snap.users), Nodes: snap.nodes.len(), Relays: len(snap.relays.list), Problems: []string{},
	}
	for _, e := range snap.nodes.all() {
		if e.online {
			st.Online++
		}
	}
	if e := s.storeErr.Load(); e != nil {
		st.Problems = append(st.Problems, e.Message)
	}
	return st
}

// Users lists the users by name.
func (s *Server) Users() []UserInfo {
	snap := s.now.Load()
	nodes := make(map[string]int)
	for _, e := range snap.nodes.all() {
		nodes[e.User]++
	}
	out := []UserInfo{}
	for _, name := range slices.Sorted(maps.Keys(snap.users)) {
		out = append(out, UserInfo{Name: name, Created: snap.users[name].Created, Nodes: nodes[name]})
	}
	return out
}

// CreateUser makes a user.
func (s *Server) CreateUser(ctx context.Context, name string) (UserInfo, error) {
	var u store.User
	err := s.do(ctx, func(t *tx) error {
		if !userName.MatchString(name) {
			return sentence(weft.CodeBadRequest, "%q cannot be a user's name: it may have up to 64 letters, digits and . _ @ + - and begins with a letter or digit", name)
		}
		if _, ok := t.users[name]; ok {
			return sentence(weft.CodeNameTaken, "there is a user %s already", name)
		}
		u = store.User{Name: name, Created: t.stamp()}
		t.users = maps.Clone(t.users)
		t.users[name] = u
		t.durable = append(t.durable, store.PutUser(u))
		return nil
	})
	return UserInfo{Name: u.Name, Created: u.Created}, err
}

// RemoveUser removes a user who has no nodes any more. The user's join keys are withdrawn.
func (s *Server) RemoveUser(ctx context.Context, name string) error {
	return s.do(ctx, func(t *tx) error {
		if _, ok := t.users[name]; !ok {
			return errNoUser(name)
		}
		for _, e := range t.nodes.all() {
			if e.User == name {
				return sentence(weft.CodeDenied, "%s still has nodes (%s, for one): remove them first (weft admin node remove)", name, e.Name)
			}
		}
		for _, k := range t.keys.all() {
			if k.User == name {
				gone := *k
				gone.User = ""
				if gone.Revoked.IsZero() {
					gone.Revoked = t.stamp()
				}
				t.putKey(gone)
			}
		}
		t.users = maps.Clone(t.users)
		delete(t.users, name)
		t.durable = append(t.durable, store.DropUser{Name: name})
		return nil
	})
}

func errNoUser(name string) error {
	return sentence(weft.CodeNotFound, "there is no user %q: `weft admin user list` shows those there are, `weft admin user create` makes one", name)
}

func (s *Server) keyInfo(k *store.JoinKey) KeyInfo {
	i := KeyInfo{
		ID: k.ID, State: KeyValid, User: k.User, Tags: k.Tags, Reusable: k.Reusable, Ephemeral: k.Ephemeral, Relay: k.Relay,
		Created: k.Created, Expires: k.Expires, Used: k.Used, Uses: k.Uses,
	}
	switch {
	case !k.Revoked.IsZero():
		i.State = KeyRevoked
	case !k.Reusable && k.Uses > 0:
		i.State = KeySpent
	case !k.Expires.IsZero() && !time.Now().Before(k.Expires):
		i.State = KeyExpired
	}
	return i
}

// Keys lists the join keys by number.
func (s *Server) Keys() []KeyInfo {
	out := []KeyInfo{}
	for _, k := range s.now.Load().keys.all() {
		out = append(out, s.keyInfo(k))
	}
	return out
}

// CreateKey makes a join key. The token has its secret, which is kept nowhere.
func (s *Server) CreateKey(ctx context.Context, r KeyRequest) (KeyInfo, wire.Token, error) {
	token := wire.Token{URL: s.url, Server: s.keys.Server.Public(), Fingerprint: s.print, Relay: r.Relay}
	_, _ = rand.Read(token.Secret[:]) // never fails (crypto/rand)
	var k store.JoinKey
	err := s.do(ctx, func(t *tx) error {
		if err := t.checkKey(r); err != nil {
			return err
		}
		tags, err := cleanTags(r.Tags)
		if err != nil {
			return err
		}
		n := t.net
		k = store.JoinKey{
			ID: n.NextKey, Hash: hashSecret(token.Secret[:]), User: r.User, Tags: tags, Reusable: r.Reusable,
			Ephemeral: r.Ephemeral, Relay: r.Relay, Created: t.stamp(),
		}
		if r.Lifetime > 0 {
			k.Expires = t.stamp().Add(r.Lifetime).Truncate(store.Precision)
		}
		if !t.addSecret(k) {
			return sentence(weft.CodeUnavailable, "the secret resembles another one's: try again")
		}
		n.NextKey++
		t.setNetwork(n)
		t.putKey(k)
		return nil
	})
	if err != nil {
		return KeyInfo{}, wire.Token{}, err
	}
	return s.keyInfo(&k), token, nil
}

func (t *tx) checkKey(r KeyRequest) error {
	if _, ok := t.users[r.User]; r.User != "" && !ok {
		return errNoUser(r.User)
	}
	switch {
	case r.Lifetime < 0 || r.Lifetime > maxLifetime:
		return sentence(weft.CodeBadRequest, "a key cannot live for %v: give it up to 100 years, or no end", r.Lifetime)
	case r.Relay && (r.User != "" || len(r.Tags) > 0 || r.Ephemeral):
		return sentence(weft.CodeBadRequest, "a relay has no user and no tags and is not ephemeral: leave these out")
	}
	return nil
}

// tagPrefix begins every tag as it is kept and as policies write it.
const tagPrefix = "tag:"

// cleanTags makes tags as they are kept of what a person wrote, with "tag:" in front or without.
func cleanTags(said []string) ([]string, error) {
	if len(said) > maxTags {
		return nil, sentence(weft.CodeBadRequest, "%d tags are more than the %d that a node can have", len(said), maxTags)
	}
	var tags []string
	for _, tag := range said {
		name := strings.TrimPrefix(tag, tagPrefix)
		if name == "" || weft.CleanName(name) != name {
			return nil, sentence(weft.CodeBadRequest, "%q cannot be a tag: it may have lower-case letters, digits and single hyphens in between", tag)
		}
		if slices.Contains(tags, tagPrefix+name) {
			return nil, sentence(weft.CodeBadRequest, "the tag %s is given twice", name)
		}
		tags = append(tags, tagPrefix+name)
	}
	return tags, nil
}

// ExpireKey brings the end of a join key forward. It cannot be put off: a key that has ended has ended.
func (s *Server) ExpireKey(ctx context.Context, id uint32, in time.Duration) (KeyInfo, error) {
	var k store.JoinKey
	err := s.do(ctx, func(t *tx) error {
		old, ok := t.keys.get(id)
		if !ok {
			return errNoKey(id)
		}
		if in < 0 || in > maxLifetime {
			return sentence(weft.CodeBadRequest, "a key cannot end %v from now", in)
		}
		k = *old
		end := t.stamp().Add(in).Truncate(store.Precision)
		if !k.Expires.IsZero() && end.After(k.Expires) {
			return sentence(weft.CodeDenied, "key %d ends on %s and cannot be prolonged: make a new one (weft admin key create)", id, k.Expires.Format(time.DateTime+" MST"))
		}
		k.Expires = end
		t.putKey(k)
		return nil
	})
	if err != nil {
		return KeyInfo{}, err
	}
	return s.keyInfo(&k), nil
}

// RemoveKey withdraws a join key, for good. It stays in the list, so that whoever comes with it hears why.
func (s *Server) RemoveKey(ctx context.Context, id uint32) error {
	return s.do(ctx, func(t *tx) error {
		k, ok := t.keys.get(id)
		if !ok {
			return errNoKey(id)
		}
		if k.Revoked.IsZero() {
			gone := *k
			gone.Revoked = t.stamp()
			t.putKey(gone)
		}
		return nil
	})
}

func errNoKey(id uint32) error {
	return sentence(weft.CodeNotFound, "there is no join key %d: `weft admin key list` shows those there are", id)
}

func (e *entry) info() NodeInfo {
	machine := ""
	if !e.Machine.IsZero() {
		machine = e.Machine.String()
	}
	return NodeInfo{
		Node: e.node(), Machine: machine, Created: e.Created, JoinKey: e.JoinKey, Expired: e.expired,
		Version: e.version, OS: e.system, Remote: e.remote,
	}
}

// Nodes lists the nodes by number.
func (s *Server) Nodes() []NodeInfo {
	out := []NodeInfo{}
	for _, e := range s.now.Load().nodes.all() {
		out = append(out, e.info())
	}
	return out
}

// nodeNamed finds a node by its name or number. No name is a number (cleanWish).
func (t *tx) nodeNamed(what string) (entry, error) {
	id, ok := t.s.index.names.taken[what]
	if n, err := strconv.ParseUint(what, 10, 32); !ok && err == nil {
		id, ok = weft.NodeID(n), true
	}
	if e, found := t.nodes.get(uint32(id)); ok && found {
		return *e, nil
	}
	return entry{}, sentence(weft.CodeNotFound, "there is no node %q: `weft admin node list` shows those there are", what)
}

// change puts a node that a person named into another state.
func (s *Server) change(ctx context.Context, what string, f func(*tx, *entry) error) (NodeInfo, error) {
	var e entry
	err := s.do(ctx, func(t *tx) (err error) {
		if e, err = t.nodeNamed(what); err != nil {
			return err
		}
		if err := f(t, &e); err != nil {
			return err
		}
		t.putNode(e, true)
		return nil
	})
	if err != nil {
		return NodeInfo{}, err
	}
	return e.info(), nil
}

// ExpireNode moves the end of a node's membership: to some time from now, or to never. A node whose end has come is
// out of the network; it is back when its end is moved again.
func (s *Server) ExpireNode(ctx context.Context, what string, r ExpireRequest) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) error {
		if r.In < 0 || r.In > maxLifetime || r.Never && r.In != 0 {
			return sentence(weft.CodeBadRequest, "a node cannot end %v from now", r.In)
		}
		was := e.expired
		e.Expires, e.expired = time.Time{}, false
		if !r.Never {
			e.Expires = t.stamp().Add(r.In).Truncate(store.Precision)
		}
		if t.expire(e) {
			t.revoke(e.ID, time.Time{})
		} else if was {
			t.revoked = t.revoked.delete(uint32(e.ID))
			t.revision++
		}
		return nil
	})
}

// RenameNode gives a node another name.
func (s *Server) RenameNode(ctx context.Context, what, name string) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) error {
		if name == "" || cleanWish(name) != name {
			return sentence(weft.CodeBadRequest, "%q cannot be a node's name: it may have up to 63 lower-case letters, digits and single hyphens in between, "+
				"must not be a number, and %q, %q and the like are reserved", name, "localhost", "wpad")
		}
		if id, ok := t.s.index.names.taken[name]; ok && id != e.ID {
			return sentence(weft.CodeNameTaken, "there is a node %s already: choose another name, or rename that one first", name)
		}
		e.Name = name
		return nil
	})
}

// RemoveNode removes a node, at once and for good: its stream ends, everybody forgets it, no relay serves it. Its
// number and addresses are not given again.
func (s *Server) RemoveNode(ctx context.Context, what string) error {
	return s.do(ctx, func(t *tx) error {
		e, err := t.nodeNamed(what)
		if err != nil {
			return err
		}
		if behind := t.behind(e.ID); len(behind) > 0 {
			first, _ := t.nodes.get(uint32(behind[0]))
			return sentence(weft.CodeDenied, "%s is the gateway of %d plain WireGuard nodes (%s, for one), which have no other way in: remove them first", e.Name, len(behind), first.Name)
		}
		t.dropNode(&e)
		t.after = append(t.after, func() { s.log.Info("node removed", "node", e.Name, "id", e.ID) })
		return nil
	})
}

// Relays lists the relays by number.
func (s *Server) Relays() []RelayInfo {
	r := s.now.Load().relays
	out := []RelayInfo{}
	if r.embedded != nil {
		out = append(out, RelayInfo{Relay: *r.embedded, Embedded: true, Connected: true, Version: weft.Version})
	}
	for _, a := range r.alone {
		out = append(out, RelayInfo{Relay: a.Relay.Relay, Connected: a.connected, Created: a.Created, Version: a.version, Remote: a.remote})
	}
	return out
}

// RemoveRelay removes a stand-alone relay, by name or number.
func (s *Server) RemoveRelay(ctx context.Context, what string) error {
	return s.do(ctx, func(t *tx) error {
		i := slices.IndexFunc(t.relays.alone, func(r relayEntry) bool { return r.Name == what || itoa(r.ID) == what })
		if e := t.relays.embedded; e != nil && (e.Name == what || itoa(e.ID) == what) && i < 0 {
			return sentence(weft.CodeDenied, "%s is the server's own relay and goes with the server", e.Name)
		}
		if i < 0 {
			return sentence(weft.CodeNotFound, "there is no relay %q: `weft admin relay list` shows those there are", what)
		}
		gone := t.relays.alone[i]
		t.durable = append(t.durable, store.DropRelay{ID: gone.ID})
		t.setRelayMachine(gone.Machine, 0)
		t.putRelays(slices.Delete(slices.Clone(t.relays.alone), i, i+1), true)
		t.after = append(t.after, func() { s.log.Info("relay removed", "relay", gone.Name, "id", gone.ID) })
		return nil
	})
}
