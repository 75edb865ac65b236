package control

import (
	"context"
	"encoding/json"
	"net/netip"
	"time"

	"weft"
)

// What the administrator has the network resolve, and in which domain its nodes are found.

// dnsDocument is the document's name in the store.
const dnsDocument = "dns"

// A DNSDocument is what the administrator writes of names.
type DNSDocument struct {
	Domain string `json:"domain,omitempty"` // that nodes are found in; empty: weft.Domain
	weft.DNS
}

func (d DNSDocument) domain() string {
	if d.Domain == "" {
		return weft.Domain
	}
	return d.Domain
}

// A resolving is the document in force. It is in snapshots and never changed.
type resolving struct {
	doc      DNSDocument
	changed  time.Time
	version  uint64 // of maps, with which it came
	revision string // of its text
	json     lazyJSON
}

func newResolving(doc DNSDocument, text string, changed time.Time, version uint64) *resolving {
	return &resolving{doc: doc, changed: changed, version: version, revision: revisionOf(text)}
}

func (r *resolving) encoded() []byte { return r.json.of(func() any { return r.doc.DNS }) }

// appendMap adds what a whole map has of it.
func (r *resolving) appendMap(dst []byte) []byte {
	if r.doc.DNS.Equal(weft.DNS{}) {
		return dst
	}
	return append(append(dst, `,"dns":`...), r.encoded()...)
}

// appendChange adds what a change has of it.
func (r *resolving) appendChange(dst []byte) []byte {
	dst = append(append(dst, `,"dns":`...), r.encoded()...)
	return append(append(append(dst, `,"domain":"`...), r.doc.domain()...), '"')
}

// loadResolving takes over what is stored.
func (t *tx) loadResolving() error {
	stored := t.documents[dnsDocument]
	var doc DNSDocument
	if stored.Text != "" {
		if err := json.Unmarshal([]byte(stored.Text), &doc); err != nil {
			return sentence(weft.CodeInternal, "what is stored of names is damaged: restore a backup of the server (%v)", err)
		}
	}
	t.resolving = newResolving(doc, stored.Text, stored.Changed, t.version)
	t.claimRecords(nil, &doc)
	return nil
}

// ownLabel is the name that a record keeps nodes from having, if it does. None may be a number (cleanWish).
func ownLabel(r weft.DNSRecord) (string, bool) { return r.Name, r.Name == cleanWish(r.Name) }

// claimRecords keeps nodes from calling themselves what is written down, and no longer what was.
func (t *tx) claimRecords(from, to *DNSDocument) {
	move := func(from, to *DNSDocument) {
		if from != nil {
			for _, r := range from.Records {
				if name, ok := ownLabel(r); ok && t.s.index.names.taken[name] == 0 {
					t.s.index.names.release(name)
				}
			}
		}
		if to != nil {
			for _, r := range to.Records {
				if name, ok := ownLabel(r); ok && t.s.index.names.taken[name] == 0 {
					t.s.index.names.claim(name, 0)
				}
			}
		}
	}
	move(from, to)
	t.undo = append(t.undo, func() { move(to, from) })
}

// DNS tells what the network resolves.
func (s *Server) DNS() DNSInfo { return s.now.Load().resolving.info() }

func (r *resolving) info() DNSInfo {
	i := DNSInfo{DNSDocument: r.doc, Revision: r.revision, Changed: r.changed}
	i.Domain = r.doc.domain()
	return i
}

// SetDNS replaces what the network resolves, and tells every node. With a revision only what is of that one is replaced.
func (s *Server) SetDNS(ctx context.Context, q DNSRequest) (DNSInfo, error) {
	doc := DNSDocument{Domain: q.Domain}
	if err := weft.CheckDomain(doc.domain()); err != nil {
		return DNSInfo{}, sentence(weft.CodeBadRequest, "domain: %v", err)
	}
	if doc.Domain == weft.Domain {
		doc.Domain = ""
	}
	var err error
	if doc.DNS, err = q.DNS.Checked(doc.domain()); err != nil {
		return DNSInfo{}, sentence(weft.CodeBadRequest, "%v", err)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return DNSInfo{}, err
	}
	err = s.do(ctx, func(t *tx) error { return t.setDNS(q.Revision, doc, string(text)) })
	if err != nil {
		return DNSInfo{}, err
	}
	s.log.Info("names changed", "domain", doc.domain(), "records", len(doc.Records), "split", len(doc.Split), "upstreams", len(doc.Upstreams))
	return s.DNS(), nil
}

func (t *tx) setDNS(revision string, doc DNSDocument, text string) error {
	old := t.resolving
	if revision != "" && revision != old.revision {
		return sentence(weft.CodeConflict, "somebody changed the names since they were read: read them again (weft admin dns get) and repeat the change")
	}
	for _, u := range doc.Upstreams {
		if err := t.checkResolver(u); err != nil {
			return err
		}
	}
	for _, list := range doc.Split {
		for _, u := range list {
			if err := t.checkResolver(u); err != nil {
				return err
			}
		}
	}
	for _, r := range doc.Records {
		name, own := ownLabel(r)
		if id := t.s.index.names.taken[name]; own && id != 0 {
			return sentence(weft.CodeNameTaken, "%s is a node's name: choose another, or rename the node first (weft admin node rename %s NAME)", name, name)
		}
	}
	if doc.Domain == old.doc.Domain && doc.DNS.Equal(old.doc.DNS) {
		return nil
	}
	t.claimRecords(&old.doc, &doc)
	t.putDocument(dnsDocument, text)
	t.version++
	t.resolving = newResolving(doc, text, t.documents[dnsDocument].Changed, t.version)
	return nil
}

// checkResolver refuses a resolver that would be asked by itself.
func (t *tx) checkResolver(u netip.AddrPort) error {
	if u.Addr() == serviceAddr(t.net.IPv4) {
		return sentence(weft.CodeBadRequest, "%s is each node's own resolver, which would ask itself: give another", u)
	}
	return nil
}
