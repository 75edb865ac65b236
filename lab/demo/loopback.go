package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/node"
)

// proxyUser is the user of a userspace node's proxy; the password is in proxyPasswordFile.
const (
	proxyUser         = "weft"
	proxyPasswordFile = "proxy-password"
)

// loopback tells the short story where there is neither root nor namespaces: a server and two nodes in
// userspace mode on loopback, and a page fetched by name through the proxy of one from the other.
func (s *scene) loopback(ctx context.Context) (err error) {
	if s.dir, err = os.MkdirTemp("", "weftdemo-"); err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			s.postMortem()
		}
		for _, p := range s.processes {
			s.left = errors.Join(s.left, p.Stop())
		}
		if s.left = errors.Join(s.left, os.RemoveAll(s.dir)); s.left == nil {
			s.say("cleaned up: programs, files")
		}
	}()
	story, done := context.WithTimeoutCause(ctx, storyLimit, fmt.Errorf("the story took longer than %v", storyLimit))
	defer done()

	https, err := freePort("tcp")
	if err != nil {
		return err
	}
	stun, err := freePort("udp")
	if err != nil {
		return err
	}
	data := filepath.Join(s.dir, "server")
	if err := s.launch(ctx, "server", "server", "--data", data, "--listen", https, "--stun", stun, "--url", "https://"+https); err != nil {
		return err
	}
	onMachine := func(ctx context.Context, name string, args ...string) (string, error) {
		cmd := netns.Command(ctx, name, args...)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
		}
		return string(out), err
	}
	token, err := s.tokenFile(story, onMachine, data)
	if err != nil {
		return err
	}
	s.say("the server is up on %s and has made a join key", https)
	for _, name := range []string{hereName, thereName} {
		proxy, err := freePort("tcp")
		if err != nil {
			return err
		}
		err = s.launch(ctx, name, "node", "--userspace", "--proxy", proxy, "--state", filepath.Join(s.dir, name),
			"--socket", s.socket(name), "--name", name, "--token", token)
		if err != nil {
			return err
		}
	}
	s.here = node.NewClient(s.socket(hereName))
	var p weft.PeerStatus
	if err = s.wait(story, "both nodes to have joined", func() (err error) {
		if p, err = s.peer(story); err == nil && p.Path == weft.PathNone {
			err = fmt.Errorf("%s has no path to %s yet", hereName, thereName)
		}
		return err
	}); err != nil {
		return err
	}
	s.say("both nodes are up, without root and without an interface; %s is %v", thereName, p.Addrs)

	page, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer page.Close()
	content := servePage(page, thereName)
	if err := s.fetchThroughProxy(story, page.Addr().(*net.TCPAddr).Port, content); err != nil {
		return err
	}
	if p, err = s.reach(story, weft.Direct); err != nil {
		return err
	}
	s.say("direct: %s at %s", thereName, p.Endpoint)
	s.linger(ctx, s.binary+" --socket "+s.socket(hereName)+" status")
	return nil
}

// launch starts the weft program on the machine itself.
func (s *scene) launch(ctx context.Context, name string, args ...string) error {
	p, err := netns.Start(name, filepath.Join(s.dir, name+".log"), netns.Command(ctx, s.binary, args...))
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return err
}

// fetchThroughProxy fetches the page by name through the node's SOCKS5 proxy, which resolves the name.
func (s *scene) fetchThroughProxy(ctx context.Context, port int, content string) error {
	status, err := s.here.Status(ctx)
	if err != nil {
		return err
	}
	password, err := os.ReadFile(filepath.Join(s.dir, hereName, proxyPasswordFile))
	if err != nil {
		return fmt.Errorf("reading the password of the proxy: %w", err)
	}
	proxy := &url.URL{Scheme: "socks5h", Host: status.Self.Proxy, User: url.UserPassword(proxyUser, strings.TrimSpace(string(password)))}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}, Timeout: 5 * time.Second}
	address := fmt.Sprintf("http://%s:%d/", fqdn(thereName), port)
	return s.wait(ctx, "the page of "+fqdn(thereName), func() error {
		began := time.Now()
		response, err := client.Get(address)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		got, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		if string(got) != content {
			return fmt.Errorf("it is %q, and %q is served", got, content)
		}
		s.say("through the SOCKS5 proxy of %s on %s: %s -> \"Hello from %s\", %d bytes in %s", hereName, status.Self.Proxy, address, thereName, len(got), span(time.Since(began)))
		return nil
	})
}

// freePort names a loopback address whose port nobody listens on now.
func freePort(network string) (string, error) {
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		defer c.Close()
		return c.LocalAddr().String(), nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
