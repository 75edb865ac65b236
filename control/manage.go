package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
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

// Status tells how the server is.
func (s *Server) Status() Status {
	snap := s.now.Load()
	st := Status{
		Schema: weft.SchemaVersion, Version: weft.Version, URL: s.url, Key: s.keys.Server.Public().String(),
		Fingerprint: hex.EncodeToString(s.print), Network: hex.EncodeToString(snap.net.Name[:]),
		IPv4: snap.net.IPv4, IPv6: snap.net.IPv6, Service: serviceAddr(snap.net.IPv4), MapVersion: snap.version,
		Users: len(snap.users), Nodes: snap.nodes.len(), Relays: len(snap.relays.list), Problems: []string{},
		Policy: snap.law.revision,
	}
	if snap.law.broken != "" {
		st.Problems = append(st.Problems, snap.law.broken)
	}
	if token, ok := s.SignInToken(); ok {
		st.SignIn = token.String()
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

func (s *Server) keyInfo(k *store.JoinKey) KeyInfo {
	i := KeyInfo{
		ID: k.ID, State: KeyValid, User: k.User, Tags: k.Tags, Reusable: k.Reusable, Ephemeral: k.Ephemeral, Relay: k.Relay,
		Approved: k.Approved, NodeLifetime: k.NodeLifetime, Created: k.Created, Expires: k.Expires, Used: k.Used, Uses: k.Uses,
	}
	switch {
	case !k.Revoked.IsZero():
		i.State = KeyRevoked
	case !k.Reusable && k.Uses > 0:
		i.State = KeySpent
	case ended(k.Expires, time.Now()):
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
		if err == nil {
			err = t.mayTag(r.User, tags)
		}
		if err != nil {
			return err
		}
		n := t.net
		k = store.JoinKey{
			ID: n.NextKey, Hash: hashSecret(token.Secret[:]), User: r.User, Tags: tags, Reusable: r.Reusable,
			Ephemeral: r.Ephemeral, Relay: r.Relay, Approved: r.Approved, NodeLifetime: r.NodeLifetime.Truncate(store.Precision), Created: t.stamp(),
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
	case r.NodeLifetime < 0 || r.NodeLifetime > maxLifetime:
		return sentence(weft.CodeBadRequest, "nodes cannot be members for %v: give them up to 100 years, or no end", r.NodeLifetime)
	case r.Relay && (r.User != "" || len(r.Tags) > 0 || r.Ephemeral || r.NodeLifetime != 0):
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
