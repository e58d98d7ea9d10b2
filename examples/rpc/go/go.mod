module example.com/zot-rpc-client

go 1.19
