package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"

	"weft"
)

// An AdminClient speaks to a server's admin socket. It may be used by several goroutines at once. Its errors are
// sentences; those of the server are a *weft.Error.
type AdminClient struct {
	path string
	http *http.Client
}

// NewAdminClient makes a client for the socket at path; nothing is connected yet.
func NewAdminClient(path string) *AdminClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &AdminClient{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Status tells how the server is.
func (c *AdminClient) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, http.MethodGet, "status", nil)
}

// DNS tells what the network resolves.
func (c *AdminClient) DNS(ctx context.Context) (DNSAnswer, error) {
	return call[DNSAnswer](ctx, c, http.MethodGet, "dns", nil)
}

// SetDNS replaces what the network resolves.
func (c *AdminClient) SetDNS(ctx context.Context, r DNSRequest) (DNSAnswer, error) {
	return call[DNSAnswer](ctx, c, http.MethodPost, "dns", r)
}

// Backup writes a backup of the server, which goes on meanwhile.
func (c *AdminClient) Backup(ctx context.Context, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+adminHost+"/v1/backup", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		e := new(weft.Error)
		if b, err := io.ReadAll(resp.Body); err != nil || json.Unmarshal(b, e) != nil || e.Message == "" {
			return fmt.Errorf("what listens at %s answered %s and nothing a weft server would say", c.path, resp.Status)
		}
		return e
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("the backup broke off: %w", err)
	}
	return nil
}

// Users lists the users by name.
func (c *AdminClient) Users(ctx context.Context) (UsersAnswer, error) {
	return call[UsersAnswer](ctx, c, http.MethodGet, "users", nil)
}

// CreateUser makes a user.
func (c *AdminClient) CreateUser(ctx context.Context, name string) (UserAnswer, error) {
	return call[UserAnswer](ctx, c, http.MethodPost, "users", UserRequest{name})
}

// RenameUser gives a user another name.
func (c *AdminClient) RenameUser(ctx context.Context, user, name string) (UserAnswer, error) {
	return call[UserAnswer](ctx, c, http.MethodPost, "users/"+url.PathEscape(user)+"/rename", RenameRequest{name})
}

// ExpireUser moves a user's end.
func (c *AdminClient) ExpireUser(ctx context.Context, user string, r ExpireRequest) (UserAnswer, error) {
	return call[UserAnswer](ctx, c, http.MethodPost, "users/"+url.PathEscape(user)+"/expire", r)
}

// LinkUser has a user be the one with an identity at the provider of sign-ins, or with none.
func (c *AdminClient) LinkUser(ctx context.Context, user string, r LinkRequest) (UserAnswer, error) {
	return call[UserAnswer](ctx, c, http.MethodPost, "users/"+url.PathEscape(user)+"/link", r)
}

// DisableUser puts a user out, EnableUser takes that back.
func (c *AdminClient) DisableUser(ctx context.Context, user string) (UserAnswer, error) {
	return call[UserAnswer](ctx, c, http.MethodPost, "users/"+url.PathEscape(user)+"/disable", nothing{})
}

// EnableUser takes DisableUser back.
func (c *AdminClient) EnableUser(ctx context.Context, user string) (UserAnswer, error) {
	return call[UserAnswer](ctx, c, http.MethodPost, "users/"+url.PathEscape(user)+"/enable", nothing{})
}

// RemoveUser removes a user who has no nodes, and withdraws the user's join keys.
func (c *AdminClient) RemoveUser(ctx context.Context, name string) (DoneAnswer, error) {
	return call[DoneAnswer](ctx, c, http.MethodDelete, "users/"+url.PathEscape(name), nil)
}

// Keys lists the join keys by number.
func (c *AdminClient) Keys(ctx context.Context) (KeysAnswer, error) {
	return call[KeysAnswer](ctx, c, http.MethodGet, "keys", nil)
}

// CreateKey makes a join key. The answer has its token, a secret, this once.
func (c *AdminClient) CreateKey(ctx context.Context, r KeyRequest) (KeyAnswer, error) {
	return call[KeyAnswer](ctx, c, http.MethodPost, "keys", r)
}

// ExpireKey brings the end of a join key forward.
func (c *AdminClient) ExpireKey(ctx context.Context, id uint32, r ExpireRequest) (KeyAnswer, error) {
	return call[KeyAnswer](ctx, c, http.MethodPost, "keys/"+itoa(id)+"/expire", r)
}

// RemoveKey withdraws a join key.
func (c *AdminClient) RemoveKey(ctx context.Context, id uint32) (DoneAnswer, error) {
	return call[DoneAnswer](ctx, c, http.MethodDelete, "keys/"+itoa(id), nil)
}

// Nodes lists the nodes by number.
func (c *AdminClient) Nodes(ctx context.Context) (NodesAnswer, error) {
	return call[NodesAnswer](ctx, c, http.MethodGet, "nodes", nil)
}

// CreatePlain makes a member that speaks plain WireGuard.
func (c *AdminClient) CreatePlain(ctx context.Context, r PlainRequest) (PlainAnswer, error) {
	return call[PlainAnswer](ctx, c, http.MethodPost, "nodes", r)
}

// ExpireNode moves the end of the membership of a node, given by name or number.
func (c *AdminClient) ExpireNode(ctx context.Context, node string, r ExpireRequest) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/expire", r)
}

// RenameNode gives a node, given by name or number, another name.
func (c *AdminClient) RenameNode(ctx context.Context, node, name string) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/rename", RenameRequest{name})
}

// MoveNode gives a node, given by name or number, to another user; "": to nobody.
func (c *AdminClient) MoveNode(ctx context.Context, node, user string) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/move", MoveRequest{user})
}

// TagNode gives a node, given by name or number, other tags: all of them.
func (c *AdminClient) TagNode(ctx context.Context, node string, tags []string) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/tag", TagRequest{tags})
}

// ApproveNode lets a node, given by name or number, in that waits.
func (c *AdminClient) ApproveNode(ctx context.Context, node string) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/approve", nothing{})
}

// DisableNode puts a node, given by name or number, out.
func (c *AdminClient) DisableNode(ctx context.Context, node string) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/disable", nothing{})
}

// EnableNode takes DisableNode back.
func (c *AdminClient) EnableNode(ctx context.Context, node string) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/enable", nothing{})
}

// Routes lists the networks that nodes offer or are approved for.
func (c *AdminClient) Routes(ctx context.Context) (RoutesAnswer, error) {
	return call[RoutesAnswer](ctx, c, http.MethodGet, "routes", nil)
}

// ChangeRoutes approves networks of a node, given by name or number, or withdraws what was approved.
func (c *AdminClient) ChangeRoutes(ctx context.Context, node string, r RoutesRequest) (NodeAnswer, error) {
	return call[NodeAnswer](ctx, c, http.MethodPost, "nodes/"+url.PathEscape(node)+"/routes", r)
}

// RemoveNode removes a node, given by name or number.
func (c *AdminClient) RemoveNode(ctx context.Context, node string) (DoneAnswer, error) {
	return call[DoneAnswer](ctx, c, http.MethodDelete, "nodes/"+url.PathEscape(node), nil)
}

// Relays lists the relays by number.
func (c *AdminClient) Relays(ctx context.Context) (RelaysAnswer, error) {
	return call[RelaysAnswer](ctx, c, http.MethodGet, "relays", nil)
}

// RemoveRelay removes a stand-alone relay, given by name or number.
func (c *AdminClient) RemoveRelay(ctx context.Context, relay string) (DoneAnswer, error) {
	return call[DoneAnswer](ctx, c, http.MethodDelete, "relays/"+url.PathEscape(relay), nil)
}

// Policy tells which policy is in force.
func (c *AdminClient) Policy(ctx context.Context) (PolicyAnswer, error) {
	return call[PolicyAnswer](ctx, c, http.MethodGet, "policy", nil)
}

// SetPolicy puts a policy in force, if there is no more to complain of in it than warnings.
func (c *AdminClient) SetPolicy(ctx context.Context, r PolicyRequest) (PolicyAnswer, error) {
	return call[PolicyAnswer](ctx, c, http.MethodPost, "policy", r)
}

// UnsetPolicy takes the policy away: the default is in force again.
func (c *AdminClient) UnsetPolicy(ctx context.Context, r PolicyRequest) (PolicyAnswer, error) {
	return call[PolicyAnswer](ctx, c, http.MethodPost, "policy/unset", r)
}

// CheckPolicy only tells what is to be complained of.
func (c *AdminClient) CheckPolicy(ctx context.Context, r PolicyRequest) (PolicyAnswer, error) {
	return call[PolicyAnswer](ctx, c, http.MethodPost, "policy/check", r)
}

// ExplainPolicy tells who may reach whom, and which rule says so.
func (c *AdminClient) ExplainPolicy(ctx context.Context, r ExplainRequest) (ExplainAnswer, error) {
	return call[ExplainAnswer](ctx, c, http.MethodPost, "policy/explain", r)
}

// nothing is the body of a request that says all in its path.
type nothing struct{}

func call[T any](ctx context.Context, c *AdminClient, method, what string, q any) (answer T, err error) {
	var in io.Reader = http.NoBody
	if q != nil {
		b, err := json.Marshal(q)
		if err != nil {
			return answer, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+adminHost+"/v1/"+what, in)
	if err != nil {
		return answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return answer, c.unreachable(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer, fmt.Errorf("read the answer of the server at %s: %w", c.path, err)
	}
	if resp.StatusCode != http.StatusOK {
		e := new(weft.Error)
		if json.Unmarshal(b, e) != nil || e.Message == "" {
			return answer, fmt.Errorf("what listens at %s answered %s and nothing a weft server would say", c.path, resp.Status)
		}
		return answer, e
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return answer, fmt.Errorf("what listens at %s gave no answer of a weft server: %w", c.path, err)
	}
	return answer, nil
}

func (c *AdminClient) unreachable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return sentence(weft.CodeUnavailable, "no weft server runs on %s: start it (weft server --data DIR), or name its directory with --data", filepath.Dir(c.path))
	case errors.Is(err, fs.ErrPermission):
		return sentence(weft.CodeDenied, "no permission to use %s: run as root, or as the user that the server runs as", c.path)
	}
	return fmt.Errorf("ask the server at %s: %w", c.path, err)
}
