// Command dex serves Dex, the identity provider, with one client and one person, for the test of signing in. It is a module of its own:
// weft leans on nothing of it.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
)

// It is told Dex's web directory and the redirect URI, says its issuer in a line, and ends with its standard input.
func main() {
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "dex:", err)
		os.Exit(1)
	}
}

func serve(web, redirect string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	issuer := "http://" + l.Addr().String()
	log := logrus.New()
	log.Out = os.Stderr
	store := memory.New(log)
	if err := store.CreateClient(storage.Client{ID: "weft", Secret: "s3cret", RedirectURIs: []string{redirect}, Name: "weft"}); err != nil {
		return err
	}
	if err := store.CreateConnector(storage.Connector{ID: "mock", Type: "mockCallback", Name: "mock"}); err != nil {
		return err
	}
	s, err := server.NewServer(context.Background(), server.Config{
		Issuer: issuer, Storage: store, SkipApprovalScreen: true, Logger: log, Web: server.WebConfig{Dir: web}, PrometheusRegistry: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	go http.Serve(l, s)
	fmt.Println(issuer)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
