package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weft/key"
)

// How records become rows and rows records. Addresses are text, for the eyes of whoever looks into the file;
// lists are JSON, keys blobs, times milliseconds of Unix time with 0 for none.

// statements are prepared once: a thousand registrations in one batch parse no SQL.
type statements struct {
	network, user, noUser, key, node, noNode, relay, noRelay, revocation, noRevocation, seen, document, noDocument *sql.Stmt

	all []*sql.Stmt
}

func (s *statements) prepare(ctx context.Context, c *sql.Conn) error {
	for _, p := range []struct {
		into **sql.Stmt
		text string
	}{
		// The WHERE makes an update that would turn a counter back change no row, which apply takes for a conflict.
		{&s.network, `INSERT INTO network VALUES (1, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (one) DO UPDATE SET
			name = excluded.name, ipv4 = excluded.ipv4, ipv6 = excluded.ipv6, next_node = excluded.next_node,
			next_relay = excluded.next_relay, next_key = excluded.next_key, given = excluded.given
			WHERE next_node <= excluded.next_node AND next_relay <= excluded.next_relay AND next_key <= excluded.next_key`},
		{&s.user, `INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET
			created = excluded.created, expires = excluded.expires, disabled = excluded.disabled, issuer = excluded.issuer,
			subject = excluded.subject, email = excluded.email, display = excluded.display, groups = excluded.groups`},
		{&s.noUser, `DELETE FROM users WHERE name = ?`},
		{&s.key, `INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
			hash = excluded.hash, user = excluded.user, tags = excluded.tags, reusable = excluded.reusable,
			ephemeral = excluded.ephemeral, relay = excluded.relay, created = excluded.created,
			expires = excluded.expires, used = excluded.used, uses = excluded.uses, revoked = excluded.revoked,
			approved = excluded.approved, node_lifetime = excluded.node_lifetime`},
		{&s.node, `INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
			machine = excluded.machine, key = excluded.key, name = excluded.name, ipv4 = excluded.ipv4,
			ipv6 = excluded.ipv6, user = excluded.user, tags = excluded.tags, ephemeral = excluded.ephemeral,
			join_key = excluded.join_key, created = excluded.created, expires = excluded.expires, seen = excluded.seen,
			gateway = excluded.gateway, approved = excluded.approved, disabled = excluded.disabled, rotation = excluded.rotation,
			rotated = excluded.rotated, advertised = excluded.advertised, routes = excluded.routes`},
		{&s.noNode, `DELETE FROM nodes WHERE id = ?`},
		{&s.relay, `INSERT INTO relays VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
			machine = excluded.machine, key = excluded.key, name = excluded.name, url = excluded.url,
			udp = excluded.udp, udp_port = excluded.udp_port, fingerprint = excluded.fingerprint, created = excluded.created`},
		{&s.noRelay, `DELETE FROM relays WHERE id = ?`},
		{&s.revocation, `INSERT INTO revoked VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET until = excluded.until`},
		{&s.noRevocation, `DELETE FROM revoked WHERE node = ?`},
		{&s.seen, `UPDATE nodes SET seen = ? WHERE id = ?`},
		{&s.document, `INSERT INTO documents VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text, changed = excluded.changed`},
		{&s.noDocument, `DELETE FROM documents WHERE name = ?`},
	} {
		st, err := c.PrepareContext(ctx, p.text)
		if err != nil {
			return err
		}
		*p.into = st
		s.all = append(s.all, st)
	}
	return nil
}

func (s *statements) close() error {
	var errs []error
	for _, st := range s.all {
		errs = append(errs, st.Close())
	}
	return errors.Join(errs...)
}

func (s *statements) apply(ctx context.Context, op Op) error {
	exec := func(st *sql.Stmt, args ...any) error { _, err := st.ExecContext(ctx, args...); return err }
	switch o := op.(type) {
	case SetNetwork:
		r, err := s.network.ExecContext(ctx, o.Name[:], prefixText(o.IPv4), prefixText(o.IPv6), o.NextNode, o.NextRelay, o.NextKey, spansText(o.Given))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			return errors.Join(fmt.Errorf("%w: a counter would go back", ErrConflict), err)
		}
		return nil
	case PutUser:
		return exec(s.user, o.Name, millis(o.Created), millis(o.Expires), millis(o.Disabled), o.Issuer, o.Subject, o.Email,
			o.Display, list(o.Groups))
	case DropUser:
		return exec(s.noUser, o.Name)
	case PutKey:
		return exec(s.key, o.ID, o.Hash[:], orNull(o.User), list(o.Tags), o.Reusable, o.Ephemeral, o.Relay,
			millis(o.Created), millis(o.Expires), millis(o.Used), o.Uses, millis(o.Revoked), o.Approved, o.NodeLifetime.Milliseconds())
	case PutNode:
		return exec(s.node, o.ID, machineOrNull(o.Machine), o.Key.Append(nil), o.Name, o.IPv4.String(), o.IPv6.String(),
			orNull(o.User), list(o.Tags), o.Ephemeral, o.JoinKey, millis(o.Created), millis(o.Expires), millis(o.Seen), o.Gateway,
			millis(o.Approved), millis(o.Disabled), o.Rotation, millis(o.Rotated), list(o.Advertised), list(o.Routes))
	case DropNode:
		return exec(s.noNode, o.ID)
	case PutRelay:
		return exec(s.relay, o.ID, o.Machine.Append(nil), o.Key.Append(nil), o.Name, o.URL, list(o.UDP), o.UDPPort,
			append([]byte{}, o.Fingerprint...), millis(o.Created))
	case DropRelay:
		return exec(s.noRelay, o.ID)
	case PutRevocation:
		return exec(s.revocation, o.Node, millis(o.Until))
	case DropRevocation:
		return exec(s.noRevocation, o.Node)
	case Seen:
		return exec(s.seen, millis(o.At), o.Node)
	case PutDocument:
		return exec(s.document, o.Name, o.Text, millis(o.Changed))
	case DropDocument:
		return exec(s.noDocument, o.Name)
	}
	return fmt.Errorf("the database does not know how to keep a %T", op)
}

func load(ctx context.Context, c *sql.Conn, st *State) error {
	if err := loadNetwork(ctx, c, &st.Network); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	var err error
	st.Users, err = rows(ctx, c, `SELECT name, created, expires, disabled, issuer, subject, email, display, groups
		FROM users ORDER BY name`, func(r *sql.Rows, u *User) error {
		return r.Scan(&u.Name, (*timeColumn)(&u.Created), (*timeColumn)(&u.Expires), (*timeColumn)(&u.Disabled), &u.Issuer, &u.Subject,
			&u.Email, &u.Display, listColumn[string]{&u.Groups})
	})
	if err != nil {
		return fmt.Errorf("users: %w", err)
	}
	st.Keys, err = rows(ctx, c, `SELECT id, hash, ifnull(user, ''), tags, reusable, ephemeral, relay, created, expires, used, uses, revoked, approved, node_lifetime
		FROM keys ORDER BY id`, func(r *sql.Rows, k *JoinKey) error {
		return r.Scan(&k.ID, bytesColumn(k.Hash[:]), &k.User, listColumn[string]{&k.Tags}, &k.Reusable, &k.Ephemeral, &k.Relay,
			(*timeColumn)(&k.Created), (*timeColumn)(&k.Expires), (*timeColumn)(&k.Used), &k.Uses, (*timeColumn)(&k.Revoked), &k.Approved, (*durationColumn)(&k.NodeLifetime))
	})
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	st.Nodes, err = rows(ctx, c, `SELECT id, machine, key, name, ipv4, ipv6, ifnull(user, ''), tags, ephemeral, join_key, created, expires, seen, gateway,
		approved, disabled, rotation, rotated, advertised, routes FROM nodes ORDER BY id`, func(r *sql.Rows, n *Node) error {
		return r.Scan(&n.ID, machineColumn{keyColumn[key.Machine]{&n.Machine}}, keyColumn[key.Node]{&n.Key}, &n.Name,
			(*addrColumn)(&n.IPv4), (*addrColumn)(&n.IPv6), &n.User, listColumn[string]{&n.Tags}, &n.Ephemeral, &n.JoinKey,
			(*timeColumn)(&n.Created), (*timeColumn)(&n.Expires), (*timeColumn)(&n.Seen), &n.Gateway,
			(*timeColumn)(&n.Approved), (*timeColumn)(&n.Disabled), &n.Rotation, (*timeColumn)(&n.Rotated),
			listColumn[netip.Prefix]{&n.Advertised}, listColumn[netip.Prefix]{&n.Routes})
	})
	if err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	st.Relays, err = rows(ctx, c, `SELECT id, machine, key, name, url, udp, udp_port, fingerprint, created
		FROM relays ORDER BY id`, func(r *sql.Rows, l *Relay) error {
		err := r.Scan(&l.ID, keyColumn[key.Machine]{&l.Machine}, keyColumn[key.Relay]{&l.Key}, &l.Name, &l.URL,
			listColumn[netip.AddrPort]{&l.UDP}, &l.UDPPort, &l.Fingerprint, (*timeColumn)(&l.Created))
		if len(l.Fingerprint) == 0 {
			l.Fingerprint = nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("relays: %w", err)
	}
	st.Revoked, err = rows(ctx, c, `SELECT node, until FROM revoked ORDER BY node`, func(r *sql.Rows, v *Revocation) error {
		return r.Scan(&v.Node, (*timeColumn)(&v.Until))
	})
	if err != nil {
		return fmt.Errorf("revoked: %w", err)
	}
	st.Documents, err = rows(ctx, c, `SELECT name, text, changed FROM documents ORDER BY name`, func(r *sql.Rows, d *Document) error {
		return r.Scan(&d.Name, &d.Text, (*timeColumn)(&d.Changed))
	})
	if err != nil {
		return fmt.Errorf("documents: %w", err)
	}
	return nil
}

func loadNetwork(ctx context.Context, c *sql.Conn, n *Network) error {
	var ipv4, ipv6, given string
	err := c.QueryRowContext(ctx, `SELECT name, ipv4, ipv6, next_node, next_relay, next_key, given FROM network`).
		Scan(bytesColumn(n.Name[:]), &ipv4, &ipv6, &n.NextNode, &n.NextRelay, &n.NextKey, &given)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	var err4, err6, errGiven error
	n.IPv4, err4 = parsePrefix(ipv4)
	n.IPv6, err6 = parsePrefix(ipv6)
	n.Given, errGiven = parseSpans(given)
	return errors.Join(err4, err6, errGiven)
}

func rows[T any](ctx context.Context, c *sql.Conn, query string, scan func(*sql.Rows, *T) error) ([]T, error) {
	r, err := c.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var out []T
	for r.Next() {
		var v T
		if err := scan(r, &v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, r.Err()
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// machineOrNull is NULL of the zero key: nodes without one are many.
func machineOrNull(k key.MachinePublic) any {
	if k.IsZero() {
		return nil
	}
	return k.Append(nil)
}

func list[T any](l []T) string {
	if len(l) == 0 {
		return "[]"
	}
	b, err := json.Marshal(l)
	if err != nil {
		panic("a list of strings or addresses is always JSON: " + err.Error())
	}
	return string(b)
}

type listColumn[T any] struct{ into *[]T }

func (c listColumn[T]) Scan(v any) error {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("a %T where a list belongs", v)
	}
	if s == "[]" {
		*c.into = nil
		return nil
	}
	return json.Unmarshal([]byte(s), c.into)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

type timeColumn time.Time

func (c *timeColumn) Scan(v any) error {
	ms, ok := v.(int64)
	if !ok {
		return fmt.Errorf("a %T where a time belongs", v)
	}
	*c = timeColumn{}
	if ms != 0 {
		*c = timeColumn(time.UnixMilli(ms).UTC())
	}
	return nil
}

type durationColumn time.Duration

func (c *durationColumn) Scan(v any) error {
	ms, ok := v.(int64)
	if !ok {
		return fmt.Errorf("a %T where a duration belongs", v)
	}
	*c = durationColumn(time.Duration(ms) * time.Millisecond)
	return nil
}

type bytesColumn []byte

func (c bytesColumn) Scan(v any) error {
	b, ok := v.([]byte)
	if !ok || len(b) != len(c) {
		return fmt.Errorf("a %T of %d bytes where %d bytes belong", v, len(b), len(c))
	}
	copy(c, b)
	return nil
}

type keyColumn[R key.Role] struct{ into *key.Public[R] }

func (c keyColumn[R]) Scan(v any) error {
	b, ok := v.([]byte)
	if !ok {
		return fmt.Errorf("a %T where a key belongs", v)
	}
	k, err := key.PublicFrom[R](b)
	*c.into = k
	return err
}

type machineColumn struct{ keyColumn[key.Machine] }

func (c machineColumn) Scan(v any) error {
	if v == nil {
		*c.into = key.MachinePublic{}
		return nil
	}
	return c.keyColumn.Scan(v)
}

type addrColumn netip.Addr

func (c *addrColumn) Scan(v any) error {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("a %T where an address belongs", v)
	}
	a, err := netip.ParseAddr(s)
	*c = addrColumn(a)
	return err
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func parsePrefix(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	return netip.ParsePrefix(s)
}

func spansText(spans []Span) string {
	var b strings.Builder
	for i, s := range spans {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%v-%v", s.First, s.Last)
	}
	return b.String()
}

func parseSpans(s string) (spans []Span, err error) {
	for _, f := range strings.Fields(s) {
		first, last, _ := strings.Cut(f, "-")
		a, errA := netip.ParseAddr(first)
		b, errB := netip.ParseAddr(last)
		if err := errors.Join(errA, errB); err != nil {
			return nil, err
		}
		spans = append(spans, Span{a, b})
	}
	return spans, nil
}
