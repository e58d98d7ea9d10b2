module example.com/zot-daemon-client

go 1.19
