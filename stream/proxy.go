package stream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"weft"
)

// tunnel asks the HTTP proxy at the other end of conn for a way to addr (RFC 9110 section 9.3.6).
func tunnel(ctx context.Context, conn net.Conn, proxy *url.URL, addr string) (net.Conn, error) {
	if proxy.Scheme == "https" {
		t := tls.Client(conn, &tls.Config{ServerName: proxy.Hostname(), MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		if err := within(ctx, conn, TLSTimeout, func() error { return t.HandshakeContext(ctx) }); err != nil {
			return nil, fmt.Errorf("TLS to the proxy %s: %w", proxy.Host, err)
		}
		conn = t
	}
	req := &http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Opaque: addr},
		Host:   addr,
		Header: http.Header{"User-Agent": {"weft/" + weft.Version}},
	}
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	var rest []byte
	err := within(ctx, conn, ResponseTimeout, func() error {
		if err := req.Write(conn); err != nil {
			return err
		}
		br := bufio.NewReader(io.LimitReader(conn, maxHead))
		resp, err := http.ReadResponse(br, req)
		if err != nil {
			return whatItSays(err)
		}
		if resp.StatusCode != http.StatusOK {
			return proxyRefusal(proxy, addr, resp.StatusCode)
		}
		rest, err = br.Peek(br.Buffered())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("through the proxy %s: %w", proxy.Host, err)
	}
	return &pipe{Conn: conn, under: conn, early: rest}, nil
}

func proxyRefusal(proxy *url.URL, addr string, status int) error {
	what := fmt.Sprintf("the HTTP proxy %s refuses a tunnel to %s (HTTP %d)", proxy.Host, addr, status)
	switch {
	case status == http.StatusProxyAuthRequired:
		what += ": put user and password into HTTPS_PROXY as http://user:password@host:port"
	case status >= 500:
		what += ": it cannot reach that address now"
	default:
		what += ": have it allowed, or name the host in NO_PROXY if it can be reached directly"
	}
	return &weft.Error{Code: weft.CodeUnavailable, Message: what}
}

// checkProxy says whether the proxy is of a kind that is spoken here.
func checkProxy(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(
			"the environment names a %s proxy, and weft speaks to HTTP proxies only: set HTTPS_PROXY to http://host:port, or the server's host in NO_PROXY", u.Scheme)}
	}
	return nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
